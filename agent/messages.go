package agent

import (
	"github.com/tinylib/msgp/msgp"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// What an agent and the Python processes that it starts say to each other over
// descriptor 3 (load, fork, become) and over a control connection (cancel).
// These never leave the node, so they are here and not in wire.

// load has a zygote import the runtime and the preload list.
type load struct{ runtime spec.Runtime }

func (m load) MarshalMsg(b []byte) ([]byte, error) {
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "runtime")
	return m.runtime.MarshalMsg(b)
}

// loaded answers load.
type loaded struct {
	forkSafe bool
	why      string
	pid      int
}

func (m *loaded) UnmarshalMsg(b []byte) ([]byte, error) {
	return readMap(b, func(key string, b []byte) ([]byte, error) {
		var err error
		switch key {
		case "fork_safe":
			m.forkSafe, b, err = msgp.ReadBoolBytes(b)
		case "why":
			m.why, b, err = msgp.ReadStringBytes(b)
		case "pid":
			m.pid, b, err = msgp.ReadIntBytes(b)
		default:
			b, err = msgp.Skip(b)
		}
		return b, err
	})
}

// fork (verbs fork and become) says all that a new worker needs to know; the
// write end of its log travels with it.
type fork struct {
	setup    wire.WorkerSetup
	worker   wire.WorkerStart
	env      map[string]string
	agentPid int
}

func (m fork) MarshalMsg(b []byte) ([]byte, error) {
	b = msgp.AppendMapHeader(b, 4)
	b = msgp.AppendString(b, "setup")
	b, err := m.setup.MarshalMsg(b)
	if err != nil {
		return b, err
	}
	b = msgp.AppendString(b, "worker")
	if b, err = m.worker.MarshalMsg(b); err != nil {
		return b, err
	}
	b = msgp.AppendString(b, "env")
	b = msgp.AppendMapStrStr(b, m.env)
	b = msgp.AppendString(b, "agent_pid")
	return msgp.AppendInt(b, m.agentPid), nil
}

// forked answers fork and become.
type forked struct{ pid int }

func (m *forked) UnmarshalMsg(b []byte) ([]byte, error) {
	return readMap(b, func(key string, b []byte) ([]byte, error) {
		var err error
		if key == "pid" {
			m.pid, b, err = msgp.ReadIntBytes(b)
			return b, err
		}
		return msgp.Skip(b)
	})
}

// cancelCall asks a worker, over its control connection, to give up a call. It
// is answered by wire.Cancelled.
type cancelCall struct{ call uint64 }

func (m cancelCall) MarshalMsg(b []byte) ([]byte, error) {
	b = msgp.AppendMapHeader(b, 1)
	b = msgp.AppendString(b, "call")
	return msgp.AppendUint64(b, m.call), nil
}

// readMap hands each entry of a map to read, which returns what follows it.
func readMap(b []byte, read func(key string, b []byte) ([]byte, error)) ([]byte, error) {
	n, b, err := msgp.ReadMapHeaderBytes(b)
	for ; err == nil && n > 0; n-- {
		var key string
		if key, b, err = msgp.ReadStringBytes(b); err == nil {
			b, err = read(key, b)
		}
	}
	return b, err
}
