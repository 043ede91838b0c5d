package cli

import (
	"strings"

	"github.com/muster-rl/muster/spec"
)

// target is a cluster, or some ranks of it, as people name them: actor_train,
// actor_train/3, actor_train/0-3,6.
type target struct {
	name  string
	ranks []int // none: all
}

func parseTarget(text string) (target, error) {
	name, ranks, some := strings.Cut(text, "/")
	if name == "" || some && ranks == "" {
		return target{}, usage("%q names no cluster: expected CLUSTER or CLUSTER/RANK, as actor_train/3 or actor_train/0-3", text)
	}
	t := target{name: name}
	if some {
		return t, t.add(ranks)
	}
	return t, nil
}

// add takes more ranks: 3, 0-3 or 0,2.
func (t *target) add(text string) error {
	ranks, err := spec.ParseMapping(text)
	if err != nil || strings.ContainsAny(text, "[(") {
		return usage("%s is no rank of %s: expected a number, or 0-3,6 for several", shown(text), shown(t.name))
	}
	t.ranks = append(t.ranks, ranks...)
	return nil
}
