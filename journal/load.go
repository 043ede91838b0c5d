package journal

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
	bolt "go.etcd.io/bbolt"
)

// load reads all that there is.
func (j *Journal) load() (State, error) {
	var s State
	err := guarded(func() error {
		return j.db.View(func(tx *bolt.Tx) error {
			for _, part := range []struct {
				bucket string
				add    func(key uint64, plain []byte) error
			}{
				{metaBucket, s.addMeta},
				{nodeBucket, func(_ uint64, plain []byte) error { return add(&s.Nodes, plain) }},
				{callerBucket, func(_ uint64, plain []byte) error { return add(&s.Callers, plain) }},
				{poolBucket, func(_ uint64, plain []byte) error { return add(&s.Pools, plain) }},
				{clusterBucket, func(_ uint64, plain []byte) error { return add(&s.Clusters, plain) }},
				{beginningBucket, func(_ uint64, plain []byte) error { return add(&s.Begun, plain) }},
			} {
				if err := j.each(tx, part.bucket, part.add); err != nil {
					return fmt.Errorf("%s: %w", part.bucket, err)
				}
			}
			return nil
		})
	})
	if err == nil && (s.Epoch == 0 || s.Meta.Session == "") {
		err = errors.New("it does not say which session it is of: its head was killed before it had written that")
	}
	return s, err
}

func (j *Journal) each(tx *bolt.Tx, bucket string, f func(key uint64, plain []byte) error) error {
	b := tx.Bucket([]byte(bucket))
	if b == nil {
		return nil
	}
	return b.ForEach(func(key, sealed []byte) error {
		if len(key) != len(keyBytes(0)) {
			return errors.New("a key that is no number")
		}
		plain, err := j.seal.open(bucket, key, sealed)
		if err != nil {
			return err
		}
		return f(binary.BigEndian.Uint64(key), plain)
	})
}

func (s *State) addMeta(key uint64, plain []byte) error {
	switch {
	case key == metaKey:
		return decode(&s.Meta, plain)
	case key == epochKey && len(plain) == 4:
		s.Epoch = binary.BigEndian.Uint32(plain)
		return nil
	}
	return errors.New("a record that this release does not know")
}

// add decodes one more record of a kind.
func add[T any, P interface {
	*T
	msgp.Unmarshaler
}](all *[]T, plain []byte) error {
	var one T
	if err := decode(P(&one), plain); err != nil {
		return err
	}
	*all = append(*all, one)
	return nil
}

// decode reads a record, and nothing else.
func decode(m msgp.Unmarshaler, plain []byte) error {
	left, err := m.UnmarshalMsg(plain)
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("%d bytes too many", len(left))
	}
	if err != nil {
		return fmt.Errorf("a record cannot be read: %w", err)
	}
	return nil
}
