package place

import (
	"fmt"
	"strings"
)

// Setting is a variable that Ray and the command get, and who says so.
type Setting struct {
	Name, Value, From string
}

// Profile is a set of variables for a kind of network. %i in a value stands for
// the interface that leads to the leader.
type Profile struct {
	Name, About string
	settings    [][2]string
}

// interfaces is what every profile but none sets: without it NCCL and Gloo
// choose by name, and may take one that leads nowhere.
var interfaces = [][2]string{{"NCCL_SOCKET_IFNAME", "%i"}, {"GLOO_SOCKET_IFNAME", "%i"}}

// Profiles are those there are, for --profile.
var Profiles = []Profile{
	{"none", "sets nothing", nil},
	{"default", "the interface that leads to the leader", interfaces},
	{"tcp", "no InfiniBand: NCCL over sockets", [][2]string{{"NCCL_IB_DISABLE", "1"}}},
	{"infiniband", "InfiniBand or RoCE, patient with a busy fabric", [][2]string{{"NCCL_IB_DISABLE", "0"}, {"NCCL_IB_TIMEOUT", "22"}, {"NCCL_IB_RETRY_CNT", "13"}}},
	{"efa", "AWS's Elastic Fabric Adapter", [][2]string{{"FI_PROVIDER", "efa"}, {"FI_EFA_USE_DEVICE_RDMA", "1"}, {"NCCL_SOCKET_IFNAME", "%i"}}},
	{"vllm", "weights sent to vLLM over NCCL", [][2]string{{"NCCL_CUMEM_ENABLE", "0"}}},
	{"debug", "NCCL and torch say what they do", [][2]string{{"NCCL_DEBUG", "INFO"}, {"TORCH_DISTRIBUTED_DEBUG", "DETAIL"}, {"TORCH_NCCL_TRACE_BUFFER_SIZE", "2000"}}},
}

// Settings are the variables of some profiles (by commas), of set (NAME=VALUE)
// and of the environment: set wins, then what is in the environment already,
// then the profiles, of which each but none has the default's.
func Settings(profiles string, iface string, set []string, env func(string) string) ([]Setting, error) {
	var all []Setting
	put := func(name, value, from string) {
		for i := range all {
			if all[i].Name == name {
				all[i].Value, all[i].From = value, from
				return
			}
		}
		all = append(all, Setting{name, value, from})
	}
	chosen, err := choose(profiles)
	if err != nil {
		return nil, err
	}
	for _, p := range chosen {
		for _, s := range p.settings {
			value := strings.ReplaceAll(s[1], "%i", iface)
			if value == "" {
				continue // no interface is known
			}
			put(s[0], value, "profile "+p.Name)
		}
	}
	for i := range all {
		if value := env(all[i].Name); value != "" {
			all[i].Value, all[i].From = value, "the environment"
		}
	}
	for _, s := range set {
		name, value, ok := strings.Cut(s, "=")
		if !ok || name == "" || strings.ContainsAny(name, " \t\n") {
			return nil, fmt.Errorf("--set %q is not NAME=VALUE", s)
		}
		if strings.HasPrefix(name, "RAY_AUTH_") || name == "RAY_ADDRESS" {
			return nil, fmt.Errorf("--set %s: muster node sets that by itself; tokens come by RAY_AUTH_TOKEN or --token-file", name)
		}
		put(name, value, "--set")
	}
	return all, nil
}

// choose picks the profiles by name.
func choose(text string) ([]Profile, error) {
	var chosen []Profile
	var names []string
	for _, p := range Profiles {
		names = append(names, p.Name)
	}
	none := false
	for name := range strings.SplitSeq(text, ",") {
		index := -1
		for i, known := range names {
			if known == name {
				index = i
			}
		}
		if index < 0 {
			return nil, fmt.Errorf("there is no profile %q; there are %s", name, strings.Join(names, ", "))
		}
		none = none || name == "none"
		chosen = append(chosen, Profiles[index])
	}
	if none && len(chosen) > 1 {
		return nil, fmt.Errorf("--profile %s: none goes alone", text)
	}
	if !none {
		chosen = append([]Profile{Profiles[1]}, chosen...)
	}
	return chosen, nil
}
