package spec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Virtual is a request for stand-ins: Nodes nodes of Devices virtual devices
// each on this machine; Relay sends workers' calls through their agents. Net has
// the nodes behave as other machines do: their agents join by TCP and relay, and
// their stores are apart. Plain leaves out TLS there.
//
//msgp:ignore Virtual
type Virtual struct {
	Nodes   int
	Devices int
	Relay   bool
	Net     bool
	Plain   bool
}

// Limits of a Virtual.
const (
	MaxVirtualNodes   = 4096
	MaxVirtualDevices = 1024
)

// ParseVirtual reads "4x8", "4x8+relay", "4x8+net" or "4x8+net+plain".
func ParseVirtual(text string) (Virtual, error) {
	bad := func(why string) (Virtual, error) {
		return Virtual{}, Errorf(CodeInvalid,
			`virtual=%q: %s; expected NODESxDEVICES, as "4x8" for 4 nodes of 8 virtual GPUs, "4x8+relay" to send calls through the nodes' agents, or "4x8+net" for nodes that join over TCP as other machines do`,
			text, why)
	}
	size, option, hasOption := strings.Cut(strings.TrimSpace(text), "+")
	var v Virtual
	switch {
	case !hasOption:
	case option == "relay":
		v.Relay = true
	case option == "net", option == "net+plain":
		v.Relay, v.Net, v.Plain = true, true, option != "net"
	default:
		return bad(fmt.Sprintf("%q is not an option", option))
	}
	left, right, ok := strings.Cut(strings.ToLower(size), "x")
	if !ok {
		return bad(`there is no "x"`)
	}
	var err error
	if v.Nodes, err = virtualCount(left, 1, MaxVirtualNodes, "nodes"); err != nil {
		return bad(err.Error())
	}
	if v.Devices, err = virtualCount(right, 0, MaxVirtualDevices, "devices per node"); err != nil {
		return bad(err.Error())
	}
	return v, nil
}

func virtualCount(text string, least, most int, what string) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil && !errors.Is(err, strconv.ErrRange) {
		return 0, fmt.Errorf("%q is not a number of %s", text, what)
	}
	if err != nil || int(n) < least || int(n) > most {
		return 0, fmt.Errorf("%s %s is outside %d to %d", text, what, least, most)
	}
	return int(n), nil
}

// String is what ParseVirtual reads.
func (v Virtual) String() string {
	text := strconv.Itoa(v.Nodes) + "x" + strconv.Itoa(v.Devices)
	switch {
	case v.Plain:
		text += "+net+plain"
	case v.Net:
		text += "+net"
	case v.Relay:
		text += "+relay"
	}
	return text
}
