package cli

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/muster-rl/muster/wire"
)

func shownStores(all []stored, asJSON bool) string {
	var out bytes.Buffer
	code := 0
	if err := showStores(&out, all, time.Unix(1_000_000, 0), asJSON); err != nil {
		exit := exitOf(err)
		if code = exit.code; exit.err != nil {
			fmt.Fprintf(&out, "muster: %v\n", exit.err)
		}
	}
	return fmt.Sprintf("%sexit code %d\n", out.String(), code)
}

func TestStores(t *testing.T) {
	var all []stored
	for _, r := range some() {
		all = append(all, stored{running: r})
	}
	for i := range all[0].status.Nodes {
		all[0].status.Nodes[i].Node.Index = i
	}
	all[0].report = wire.StoreReport{
		Nodes: []wire.StoreStatus{
			{Node: 0, Budget: 8 << 30, Used: 5 << 30, Pooled: 1 << 30, Spilled: 3 << 30, SpillLimit: 100 << 30, SpillDir: "/tmp", Objects: []wire.StoreObject{
				{Object: 1<<48 | 1, Bytes: 4 << 30, State: "sealed", What: "batch of 4096 rows: input_ids, mask", Maker: 2, Held: true, Since: 999_900, Handles: []wire.StoreHandle{{Holder: 1, Count: 2, Seconds: 90}, {Holder: 4, Count: 1, Seconds: 0.25}}, Views: []wire.StoreView{
					{Holder: 3, Count: 2, Since: 999_990}, {Holder: 1, Count: 1, Since: 999_999.5}, {Holder: 4, Count: 1, Since: 999_000}, {Holder: 9, Count: 1, Since: 0},
				}},
				{Object: 1<<48 | 2, Bytes: 3 << 30, State: "spilled", What: "arguments of train_step\x1b[2J", Maker: 1, Held: true, Since: 990_000},
				{Object: 2<<48 | 7, Bytes: 2 << 30, State: "copy", Since: 999_000},
			}},
			{Node: 2, Budget: 8 << 30, Objects: []wire.StoreObject{{Object: 2<<48 | 1, Bytes: 3<<30 + 1, State: "writing", Maker: 9, Since: 999_999}}},
		},
		Holders: []wire.HolderName{{Holder: 1, Name: "the script (process 4700)"}, {Holder: 2, Name: "actor_infer-0-G0"}, {Holder: 3, Name: "actor_train-0-G0"}, {Holder: 4, Name: "actor_train-1-G1"}},
	}
	all[1].report.Nodes = []wire.StoreStatus{{Budget: 1 << 30}}
	for i := range 30 {
		all[1].report.Nodes[0].Objects = append(all[1].report.Nodes[0].Objects, wire.StoreObject{Bytes: uint64(i) << 20, State: "sealed", Since: 999_000})
	}
	golden(t, "store.txt", shownStores(all, false))
	golden(t, "store.json.txt", shownStores(all[:1], true))
	none := stored{running: some()[0]}
	golden(t, "store_empty.txt", shownStores([]stored{none, {running: none.running, report: wire.StoreReport{Nodes: []wire.StoreStatus{{Budget: 1 << 30}}}}}, false))
}

// A head is asked as any other command asks it.
func TestStoresOfALiveHead(t *testing.T) {
	s, _, end := live(t)
	script(t, s, "actor", 2)
	all := askStores([]running{{Session: s}})
	if len(all) != 1 || all[0].err != nil {
		t.Fatalf("%+v", all)
	}
	end()
	if all := askStores([]running{{Session: s}}); len(all) != 0 {
		t.Errorf("after the end: %+v", all)
	}
}
