package fake_test

import (
	"testing"

	"github.com/muster-rl/muster/backend"
	"github.com/muster-rl/muster/backend/backendtest"
	"github.com/muster-rl/muster/backend/fake"
)

func TestConformance(t *testing.T) {
	backendtest.Run(t, backendtest.Kit{
		New: func(*testing.T) backend.Backend { return fake.New(2, fake.Script{}) },
	})
}
