package value

import (
	"reflect"
	"slices"

	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/wire"
)

// merged is the key of a meta whose dicts are merged where batches are put
// together; of all other keys the first one's value stays.
const merged = "metrics"

// Meta is the dict beside the rows: nil where there is none. It is the caller's
// own.
func (b *Batch) Meta() (map[string]any, error) {
	blocks, err := b.take()
	if err != nil {
		return nil, err
	}
	defer releaseBlocks(blocks)
	var all []map[string]any
	at := b.handle.Objects
	counted := map[uint64]bool{}
	for _, m := range b.handle.Metas {
		one, err := decodeMeta(m.Value, blocks[at:at+m.Bufs])
		if err != nil {
			return nil, about(err, "the meta of a batch")
		}
		at += m.Bufs
		if m.Origin != 0 && counted[m.Origin] {
			delete(one, merged) // the same metrics, beside other things
		}
		counted[m.Origin] = true
		all = append(all, one)
	}
	return mergeMetas(all), nil
}

func decodeMeta(raw []byte, blocks []*block) (meta map[string]any, err error) {
	bufs := make([]wire.Buf, len(blocks))
	held := object.NewSet()
	defer held.Release()
	for i, b := range blocks {
		b.mu.Lock()
		if bufs[i].Data = b.bytes; b.object != nil {
			bufs[i] = b.ref.Buf()
			held.Add(b.object)
		}
		b.mu.Unlock()
	}
	return meta, RawOf(raw, bufs, held).Decode(&meta)
}

func mergeMetas(all []map[string]any) map[string]any {
	if len(all) == 0 {
		return nil
	}
	out := all[0]
	var metrics []any
	for i, one := range all {
		for key, v := range one {
			if key == merged {
				metrics = append(metrics, v)
			}
			if _, has := out[key]; !has && i > 0 {
				out[key] = v
			}
		}
	}
	if len(metrics) > 1 {
		out[merged] = mergeMetrics(metrics)
	}
	return out
}

// mergeMetrics merges dicts by their keys; whatever is not all dicts is a list.
func mergeMetrics(several []any) any {
	values := map[string][]any{}
	for _, one := range several {
		dict, ok := one.(map[string]any)
		if !ok {
			return several
		}
		for key, v := range dict {
			values[key] = append(values[key], v)
		}
	}
	out := map[string]any{}
	for key, some := range values {
		out[key] = together(some)
	}
	return out
}

// together puts arrays and lists one after another, all else into a list.
func together(values []any) any {
	if a, ok := joinArrays(values); ok {
		return a
	}
	var out []any
	for _, v := range values {
		list, ok := v.([]any)
		if !ok {
			return values
		}
		out = append(out, list...)
	}
	return out
}

// joinArrays joins arrays that differ in their first dimension at most.
func joinArrays(values []any) (Array, bool) {
	first, ok := values[0].(Array)
	if !ok || len(first.Shape) == 0 {
		return first, false
	}
	out := Array{DType: first.DType, Tensor: first.Tensor, Shape: slices.Clone(first.Shape)}
	out.Shape[0] = 0
	for _, v := range values {
		a, ok := v.(Array)
		if !ok || a.Fortran || a.DType != first.DType || a.Tensor != first.Tensor || len(a.Shape) != len(first.Shape) || !reflect.DeepEqual(a.Shape[1:], first.Shape[1:]) {
			return first, false
		}
		out.Data = append(out.Data, a.Data...)
		out.Shape[0] += a.Shape[0]
	}
	return out, true
}
