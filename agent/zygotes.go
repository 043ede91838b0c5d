package agent

import (
	"fmt"
	"path/filepath"
	"sync"

	"github.com/muster-rl/muster/process"
	"github.com/muster-rl/muster/spec"
)

// zygotes keeps one zygote per key, started when it is first needed and again
// when it is needed after its end.
type zygotes struct {
	node   string
	logDir string
	reaper *process.Reaper
	out    *outbox

	mu    sync.Mutex
	byKey map[string]*zygote
	all   map[*zygote]bool
	shut  bool
}

// get returns the zygote for workers of such an environment, loading or loaded,
// and counts the caller among those who wait for it. Who gets one waits.
func (zs *zygotes) get(rt spec.Runtime, env map[string]string) (*zygote, error) {
	key := zygoteKey(rt, env)
	zs.mu.Lock()
	defer zs.mu.Unlock()
	if zs.shut {
		return nil, spec.Errorf(spec.CodeStartup, "node %s is stopping", zs.node)
	}
	if z := zs.byKey[key]; z != nil && !z.doomed.Load() {
		select {
		case <-z.child.Done():
		default:
			z.waiting++
			return z, nil
		}
	}
	z, err := zs.start(rt, env)
	if err != nil {
		return nil, err
	}
	z.waiting++
	zs.byKey[key], zs.all[z] = z, true
	go z.load()
	go func() {
		z.watch()
		zs.mu.Lock()
		defer zs.mu.Unlock()
		delete(zs.all, z)
		if zs.byKey[key] == z {
			delete(zs.byKey, key)
		}
	}()
	return z, nil
}

// wait is until the zygote has loaded; false where stopping is closed before. A
// zygote that a start was given up for is not used again, and is killed when
// nobody else waits for it: it may never be ready.
func (zs *zygotes) wait(z *zygote, stopping <-chan struct{}) bool {
	loaded := true
	select {
	case <-z.ready:
	case <-stopping:
		loaded = false
	}
	zs.mu.Lock()
	defer zs.mu.Unlock()
	z.waiting--
	if loaded {
		return true
	}
	for key, other := range zs.byKey {
		if other == z {
			delete(zs.byKey, key)
		}
	}
	if z.waiting == 0 {
		z.kill()
	}
	return false
}

func (zs *zygotes) start(rt spec.Runtime, env map[string]string) (*zygote, error) {
	path := filepath.Join(zs.logDir, "zygote-"+fileName(zs.node)+".log")
	output, writer, err := openStream(zs.out, path, 0, "zygote")
	if err != nil {
		return nil, limitError(spec.Errorf(spec.CodeStartup, "cannot start a zygote on node %s: %v", zs.node, err), err)
	}
	child, l, err := startPython(zs.reaper, zs.node, "zygote", rt, zygoteEnv(rt, env), writer)
	writer.Close()
	if err != nil {
		return nil, err
	}
	return &zygote{
		node: zs.node, runtime: rt, reaper: zs.reaper, child: child, line: l, output: output,
		ready: make(chan struct{}), gone: make(chan struct{}),
	}, nil
}

// tellUnsafe says why its workers are spawned.
func (zs *zygotes) tellUnsafe(z *zygote) {
	zs.out.add(0, "zygote", "", fmt.Sprintf("muster: workers on node %s are spawned instead of forked, which is slower: %s", zs.node, z.why))
	zs.out.ring()
}

// kill ends every zygote; shut: for good. It returns what there is to wait for.
func (zs *zygotes) kill(shut bool) []*zygote {
	zs.mu.Lock()
	defer zs.mu.Unlock()
	zs.shut = zs.shut || shut
	var all []*zygote
	for z := range zs.all {
		z.kill()
		all = append(all, z)
	}
	return all
}
