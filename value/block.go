package value

import (
	"fmt"
	"strings"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/muster-rl/muster/column"
	"github.com/muster-rl/muster/object"
	"github.com/muster-rl/muster/spec"
	"github.com/muster-rl/muster/wire"
)

// inline is from which size on a block is an object of a store; a smaller one
// rides in frames.
const inline = 64 << 10

// block is what a buffer of a handle stands for: columns of the same rows, or
// bytes of a meta. Columns are given first and frozen when they are first sent:
// written to the store once, and read from there after that. It is counted; what
// it holds goes with its last use.
type block struct {
	mu     sync.Mutex
	uses   int
	given  *given
	bytes  []byte
	object *object.Object // the block has a use of it
	ref    wire.Ref
}

// given is columns as a user gave them.
type given struct {
	rows    int
	columns []column.Column
}

// blockOf is what a buffer that came with objects in held stands for.
func blockOf(b wire.Buf, held *object.Set) (*block, error) {
	ref, ok := b.Ref()
	if !ok {
		return &block{uses: 1, bytes: b.Data}, nil
	}
	ref.New = false
	o := held.Find(ref.Object)
	if o == nil {
		return nil, spec.Errorf(spec.CodeInternal, "a batch whose rows are in a store that cannot be reached from here")
	}
	return &block{uses: 1, object: o, ref: ref}, nil
}

func (b *block) retain() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.uses++
}

func (b *block) release() {
	b.mu.Lock()
	b.uses--
	last := b.uses == 0
	b.mu.Unlock()
	if !last {
		return
	}
	if b.given != nil {
		column.Release(b.given.columns)
	}
	if b.object != nil {
		b.object.Release()
	}
}

func releaseBlocks(blocks []*block) {
	for _, b := range blocks {
		b.release()
	}
}

// same is what blocks of the same bytes have in common.
type same struct {
	block  *block
	stores *object.Stores
	ref    wire.Ref
}

func (b *block) same() same {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.object != nil {
		return same{stores: b.object.Stores(), ref: b.ref}
	}
	return same{block: b}
}

// name is the block as a frame has it, after it was frozen.
func (b *block) name(m *Message) (wire.Buf, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.given != nil {
		if err := b.freeze(m.stores()); err != nil {
			return wire.Buf{}, err
		}
	}
	if b.object == nil {
		return wire.Buf{Data: b.bytes}, nil
	}
	if m.link == nil || b.object.Stores().Same(m.stores()) {
		m.hold(b.object)
		return b.ref.Buf(), nil
	}
	data, err := fetch(b.object, b.ref) // of another head
	return wire.Buf{Data: data}, err
}

// freeze writes what was given, for whoever holds the lock.
func (b *block) freeze(stores *object.Stores) error {
	g := b.given
	content := column.Layout(g.rows, g.columns)
	if content.Size < inline || stores == nil {
		b.bytes = content.Bytes()
	} else {
		o, _, err := stores.Put(g.what(), content.Parts...)
		if err != nil {
			return err
		}
		b.object, b.ref = o, wire.Ref{Object: o.ID, Length: uint64(content.Size)}
	}
	column.Release(g.columns)
	b.given = nil
	return nil
}

// what tells people what an object is.
func (g *given) what() string {
	var names []string
	for i := range g.columns {
		if i == 8 {
			names = append(names, "…")
			break
		}
		names = append(names, g.columns[i].Name)
	}
	return fmt.Sprintf("batch of %d rows: %s", g.rows, strings.Join(names, ", "))
}

// lease is a mapped object as what Arrow frees.
type lease struct{ *object.Mapped }

func (l lease) Allocate(int) []byte           { panic("value: mapped memory is not for allocating") }
func (l lease) Reallocate(int, []byte) []byte { panic("value: mapped memory is not for allocating") }
func (l lease) Free([]byte)                   { l.Close() }

// read reads the columns of blocks, by one request to each store; what it returns
// is to be released.
func read(blocks []*block) (all []given, err error) {
	all = make([]given, len(blocks))
	defer func() {
		if err != nil {
			releaseGiven(all)
			all = nil
		}
	}()
	var stored []int
	var objects []*object.Object
	for i, b := range blocks {
		if o, wrong := b.read(&all[i]); o != nil {
			stored, objects = append(stored, i), append(objects, o)
		} else if wrong != nil {
			return all, wrong
		}
	}
	mapped, err := object.Open(objects...)
	if err != nil {
		return all, err
	}
	for k, i := range stored {
		content, wrong := contentOf(mapped[k], blocks[i].ref)
		if wrong == nil {
			wrong = all[i].read(content)
		}
		if wrong != nil {
			err = wrong // after every lease is in hands that end it
		}
	}
	return all, err
}

// read reads what is at hand; else it returns the object that is to be mapped.
func (b *block) read(g *given) (*object.Object, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.object != nil:
		return b.object, nil
	case b.given != nil:
		*g = *b.given
		for i := range g.columns {
			g.columns[i].Retain()
		}
		return nil, nil
	}
	if !isAligned(b.bytes) { // frames pack their buffers without gaps
		b.bytes = alignedCopy(b.bytes)
	}
	return nil, g.read(memory.NewBufferBytes(b.bytes))
}

// read reads the content of an object, which it takes.
func (g *given) read(content *memory.Buffer) (err error) {
	defer content.Release()
	g.rows, g.columns, err = column.Read(content)
	return err
}

func releaseGiven(all []given) {
	for _, g := range all {
		column.Release(g.columns)
	}
}

// contentOf is the bytes that a reference stands for, as a buffer that ends the
// lease with its last use.
func contentOf(m *object.Mapped, ref wire.Ref) (*memory.Buffer, error) {
	data, err := m.Cut(ref.Offset, ref.Length)
	if err != nil {
		m.Close()
		return nil, err
	}
	if !isAligned(data) {
		data = alignedCopy(data)
		m.Close()
		return memory.NewBufferBytes(data), nil
	}
	return memory.NewBufferWithAllocator(data, lease{m}), nil
}

func isAligned(b []byte) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%column.Alignment == 0
}

func alignedCopy(b []byte) []byte {
	own := memory.NewGoAllocator().Allocate(len(b))
	copy(own, b)
	return own
}
