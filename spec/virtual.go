package spec

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Virtual is a request for stand-ins: Nodes nodes of Devices virtual devices
// each on this machine; Relay sends workers' calls through their agents.
//
//msgp:ignore Virtual
type Virtual struct {
	Nodes   int
	Devices int
	Relay   bool
}

// Limits of a Virtual.
const (
	MaxVirtualNodes   = 4096
	MaxVirtualDevices = 1024
)

// ParseVirtual reads "4x8" or "4x8+relay".
func ParseVirtual(text string) (Virtual, error) {
	bad := func(why string) (Virtual, error) {
		return Virtual{}, Errorf(CodeInvalid,
			`virtual=%q: %s; expected NODESxDEVICES, as "4x8" for 4 nodes of 8 virtual GPUs, or "4x8+relay" to send calls through the nodes' agents`,
			text, why)
	}
	size, option, hasOption := strings.Cut(strings.TrimSpace(text), "+")
	if hasOption && option != "relay" {
		return bad(fmt.Sprintf("%q is not an option", option))
	}
	left, right, ok := strings.Cut(strings.ToLower(size), "x")
	if !ok {
		return bad(`there is no "x"`)
	}
	nodes, err := virtualCount(left, 1, MaxVirtualNodes, "nodes")
	if err != nil {
		return bad(err.Error())
	}
	devices, err := virtualCount(right, 0, MaxVirtualDevices, "devices per node")
	if err != nil {
		return bad(err.Error())
	}
	return Virtual{Nodes: nodes, Devices: devices, Relay: hasOption}, nil
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
	if v.Relay {
		text += "+relay"
	}
	return text
}
