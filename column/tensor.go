package column

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/muster-rl/muster/spec"
)

// The canonical extension types of Arrow that batches need. Neither is
// registered with arrow, which would be a side effect of importing us; arrow's
// own, and those of others, are known by their names.
const (
	boolName   = "arrow.bool8"
	tensorName = "arrow.fixed_shape_tensor"
)

// BoolType is arrow.bool8: truths of a byte each, as numpy and torch have them.
type BoolType struct{ arrow.ExtensionBase }

var boolType = NewBoolType()

// NewBoolType makes the type.
func NewBoolType() *BoolType {
	return &BoolType{arrow.ExtensionBase{Storage: arrow.PrimitiveTypes.Int8}}
}

// ArrayType is BoolArray.
func (*BoolType) ArrayType() reflect.Type { return reflect.TypeFor[BoolArray]() }

// ExtensionName is arrow.bool8.
func (*BoolType) ExtensionName() string { return boolName }

// String is the type for people.
func (*BoolType) String() string { return "bool8" }

// Serialize has nothing to tell.
func (*BoolType) Serialize() string { return "" }

// Deserialize makes the type of its storage.
func (*BoolType) Deserialize(storage arrow.DataType, _ string) (arrow.ExtensionType, error) {
	if storage.ID() != arrow.INT8 {
		return nil, fmt.Errorf("bool8 is stored as int8, not as %s", storage)
	}
	return NewBoolType(), nil
}

// ExtensionEquals compares by name.
func (*BoolType) ExtensionEquals(other arrow.ExtensionType) bool {
	return other.ExtensionName() == boolName
}

func isBool(t arrow.DataType) bool {
	e, ok := t.(arrow.ExtensionType)
	return ok && e.ExtensionName() == boolName
}

// BoolArray is truths of a byte each.
type BoolArray struct{ array.ExtensionArrayBase }

// Value is whether row i is true.
func (a *BoolArray) Value(i int) bool { return a.Storage().(*array.Int8).Value(i) != 0 }

// ValueStr is row i for people.
func (a *BoolArray) ValueStr(i int) string {
	if a.IsNull(i) {
		return array.NullValueStr
	}
	return fmt.Sprint(a.Value(i))
}

// TensorType is arrow.fixed_shape_tensor: rows of one shape, in C order.
type TensorType struct {
	arrow.ExtensionBase
	shape []int
}

// NewTensorType makes the type of rows of that shape.
func NewTensorType(elem arrow.DataType, shape ...int) (*TensorType, error) {
	n, ok := count(shape)
	if !ok || n == 0 || n > math.MaxInt32 || len(shape) == 0 {
		return nil, spec.Errorf(spec.CodeInvalid, "no tensor has the shape %v: dimensions are 1 or more, and 2^31 elements are too many", shape)
	}
	return &TensorType{arrow.ExtensionBase{Storage: arrow.FixedSizeListOf(int32(n), elem)}, slices.Clone(shape)}, nil
}

// Shape is that of one row.
func (t *TensorType) Shape() []int { return t.shape }

// Elem is the type of the elements.
func (t *TensorType) Elem() arrow.DataType { return t.Storage.(*arrow.FixedSizeListType).Elem() }

// ArrayType is TensorArray.
func (*TensorType) ArrayType() reflect.Type { return reflect.TypeFor[TensorArray]() }

// ExtensionName is arrow.fixed_shape_tensor.
func (*TensorType) ExtensionName() string { return tensorName }

// String is the type for people.
func (t *TensorType) String() string {
	return fmt.Sprintf("fixed_shape_tensor<%s>%v", t.Elem(), t.shape)
}

// tensorMeta is what the extension's metadata says.
type tensorMeta struct {
	Shape       []int `json:"shape"`
	Permutation []int `json:"permutation,omitempty"`
}

// Serialize is the shape, as Arrow wants it written.
func (t *TensorType) Serialize() string {
	text, _ := json.Marshal(tensorMeta{Shape: t.shape}) // numbers
	return string(text)
}

// Deserialize is Serialize backwards.
func (*TensorType) Deserialize(storage arrow.DataType, text string) (arrow.ExtensionType, error) {
	list, ok := storage.(*arrow.FixedSizeListType)
	if !ok {
		return nil, fmt.Errorf("a tensor is stored as a list of fixed size, not as %s", storage)
	}
	shape, err := tensorShape(text, int(list.Len()))
	if err != nil {
		return nil, err
	}
	return &TensorType{arrow.ExtensionBase{Storage: storage}, shape}, nil
}

// tensorShape reads the metadata of a tensor of n elements a row.
func tensorShape(text string, n int) ([]int, error) {
	var meta tensorMeta
	if err := json.Unmarshal([]byte(text), &meta); err != nil {
		return nil, spec.Errorf(spec.CodeEncoding, "a tensor whose metadata cannot be read: %v", err)
	}
	if !slices.IsSorted(meta.Permutation) {
		return nil, spec.Errorf(spec.CodeEncoding, "a tensor whose dimensions are permuted (%v): write it in C order", meta.Permutation)
	}
	if has, ok := count(meta.Shape); !ok || has != n {
		return nil, spec.Errorf(spec.CodeEncoding, "a tensor of the shape %v in lists of %d elements", meta.Shape, n)
	}
	return meta.Shape, nil
}

// ExtensionEquals compares shapes and elements.
func (t *TensorType) ExtensionEquals(other arrow.ExtensionType) bool {
	return other.ExtensionName() == tensorName && other.Serialize() == t.Serialize() && arrow.TypeEqual(other.StorageType(), t.Storage)
}

// TensorArray is rows of one shape.
type TensorArray struct{ array.ExtensionArrayBase }

// NewTensor makes rows of that shape of their elements, one row after another in
// C order. The array has references of its own to elements.
func NewTensor(elements arrow.Array, shape ...int) (*TensorArray, error) {
	t, err := NewTensorType(elements.DataType(), shape...)
	if err != nil {
		return nil, err
	}
	n := int(t.Storage.(*arrow.FixedSizeListType).Len())
	if elements.Len()%n != 0 {
		return nil, spec.Errorf(spec.CodeInvalid, "%d elements do not make whole rows of the shape %v", elements.Len(), shape)
	}
	return tensorOf(t, elements.Len()/n, elements.Data()), nil
}

func tensorOf(t *TensorType, rows int, elements arrow.ArrayData) *TensorArray {
	data := array.NewData(t, rows, noValidity, []arrow.ArrayData{elements}, 0, 0)
	defer data.Release()
	return array.NewExtensionData(data).(*TensorArray)
}

// Shape is that of one row.
func (a *TensorArray) Shape() []int { return a.ExtensionType().(*TensorType).shape }

// Elements are those of all rows, one row after another. They hold references
// of their own: release them.
func (a *TensorArray) Elements() arrow.Array {
	list := a.Storage().(*array.FixedSizeList)
	from, _ := list.ValueOffsets(0)
	n := int64(list.DataType().(*arrow.FixedSizeListType).Len())
	return array.NewSlice(list.ListValues(), from, from+n*int64(a.Len()))
}

// ValueStr is row i for people.
func (a *TensorArray) ValueStr(i int) string { return a.Storage().ValueStr(i) }
