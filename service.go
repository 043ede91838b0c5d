package muster

import (
	"context"

	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// Service is the service of that name, where one lives; else one is made: a worker
// of its own that hosts an object of config.Class, made with args, [Kwargs] last.
// Who asks at the same time gets the same one. It is called by RankZero, ends by
// Shutdown, and goes with this session.
func (s *Session) Service(ctx context.Context, config ClusterConfig, args ...any) (*Cluster, error) {
	if config.Class == "" || config.Config != nil {
		return nil, spec.Errorf(CodeInvalid, "service %s: it needs a Class and takes no Config: what its object is made with are arguments of Service", config.Name)
	}
	kwargs := Kwargs{}
	if n := len(args); n > 0 {
		if last, ok := args[n-1].(Kwargs); ok {
			args, kwargs = args[:n-1], last
		}
	}
	config.Config = []any{append([]any{}, args...), map[string]any(kwargs)}
	req := wire.ClusterCreate{Spec: config.spec(), Reuse: true}
	req.Spec.Kind = spec.KindService
	return s.create(ctx, config, req)
}

// GetService is the living service of that name.
func (s *Session) GetService(ctx context.Context, name string) (*Cluster, error) {
	return s.attached(ctx, wire.ClusterRef{Name: name, Kind: spec.KindService})
}
