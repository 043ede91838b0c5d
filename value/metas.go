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
	var told []metrics
	at := b.handle.Objects
	for _, m := range b.handle.Metas {
		one, err := decodeMeta(m.Value, blocks[at:at+m.Bufs])
		if err != nil {
			return nil, about(err, "the meta of a batch")
		}
		at += m.Bufs
		if value, has := one[merged]; has {
			told = addMetrics(told, metrics{m.Origin, value})
		}
		all = append(all, one)
	}
	return mergeMetas(all, told), nil
}

// metrics are those of one origin: whoever made them drew that number. Others may
// have left out some of them, which they have changed.
type metrics struct {
	origin uint64
	value  any
}

// layer is 0 of what stands for itself; what was added to others has a higher one
// than these.
func (m metrics) layer() uint64 { return m.origin >> layerBits }

// layerBits are those of an origin below its layer.
const layerBits = 56

// addMetrics adds to those that are known what they lack: each of an origin counts
// once.
func addMetrics(told []metrics, m metrics) []metrics {
	at := slices.IndexFunc(told, func(o metrics) bool { return m.origin != 0 && o.origin == m.origin })
	if at < 0 {
		return append(told, m)
	}
	known, ok := told[at].value.(map[string]any)
	more, its := m.value.(map[string]any)
	if ok && its {
		for key, v := range more {
			if _, has := known[key]; !has {
				known[key] = v
			}
		}
	}
	return told
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

func mergeMetas(all []map[string]any, told []metrics) map[string]any {
	if len(all) == 0 {
		return nil
	}
	out := all[0]
	for _, one := range all[1:] {
		for key, v := range one {
			if _, has := out[key]; !has {
				out[key] = v
			}
		}
	}
	if len(told) > 0 {
		out[merged] = mergeMetrics(told)
	}
	return out
}

// mergeMetrics merges dicts by their keys; whatever is not all dicts is a list. What
// one part alone has stays as it is, if it has its layer to itself.
func mergeMetrics(several []metrics) any {
	if len(several) == 1 {
		return several[0].value
	}
	values, layers, of := map[string][]any{}, map[uint64]int{}, map[string]uint64{}
	for _, one := range several {
		dict, ok := one.value.(map[string]any)
		if !ok {
			return valuesOf(several)
		}
		layers[one.layer()]++
		for key, v := range dict {
			values[key], of[key] = append(values[key], v), one.layer()
		}
	}
	out := map[string]any{}
	for key, some := range values {
		if out[key] = together(some); len(some) == 1 && layers[of[key]] == 1 {
			out[key] = some[0]
		}
	}
	return out
}

func valuesOf(several []metrics) []any {
	out := make([]any, len(several))
	for i, one := range several {
		out[i] = one.value
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
