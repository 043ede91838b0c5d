package journal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
	"golang.org/x/sys/unix"
)

const (
	fileName   = "journal"
	keyName    = "key"
	brokenName = "journal.broken" // what fileName becomes when it is not whole any more
	// lockBound is how long a head that is being killed may hold the file.
	lockBound = 5 * time.Second
	// room is what a journal has from the start, so that a disk that fills up
	// later does not matter to most.
	room = 1 << 20
)

// Journal is an open journal. Its methods may be called concurrently. A nil
// Journal keeps nothing.
type Journal struct {
	dir   string
	seal  *seal
	db    *bolt.DB
	epoch uint32
	tell  func(error)

	mu     sync.Mutex
	broken error
	closed bool
}

// Create makes the journal of a new session, in its folder. tell, where not nil,
// hears once that a write failed and that the session cannot be resumed.
func Create(dir string, tell func(error)) (*Journal, error) {
	key := make([]byte, keySize)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("no randomness for the journal's key: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, keyName), key, 0o600); err != nil {
		return nil, fmt.Errorf("cannot write the journal's key: %w", err)
	}
	if err := reserve(filepath.Join(dir, fileName)); err != nil {
		return nil, fmt.Errorf("cannot make the journal: %w", err)
	}
	j, err := open(dir, key, tell)
	if err != nil {
		return nil, err
	}
	j.epoch = 1
	if err := j.update(j.writeEpoch); err != nil {
		_ = j.db.Close()
		return nil, fmt.Errorf("cannot write the journal: %w", err)
	}
	return j, nil
}

// Open takes over the journal of a session whose head is gone: what it holds,
// with the next epoch, which is written before Open returns.
func Open(dir string, tell func(error)) (*Journal, State, error) {
	if _, err := os.Stat(filepath.Join(dir, brokenName)); err == nil {
		return nil, State{}, fmt.Errorf("the journal in %s is not complete: its head could not write it to the end (was the disk full?), so no other can go on from it", dir)
	}
	key, err := os.ReadFile(filepath.Join(dir, keyName))
	if err == nil && len(key) != keySize {
		err = fmt.Errorf("%s has %d bytes instead of %d", keyName, len(key), keySize)
	}
	if err == nil {
		_, err = os.Stat(filepath.Join(dir, fileName)) // bbolt would make one
	}
	if err != nil {
		return nil, State{}, fmt.Errorf("%s holds no journal to go on from: %w", dir, err)
	}
	j, err := open(dir, key, tell)
	if err != nil {
		return nil, State{}, err
	}
	state, err := j.load()
	if err == nil {
		state.Epoch++
		j.epoch = state.Epoch
		err = j.update(j.writeEpoch)
	}
	if err != nil {
		_ = j.db.Close()
		return nil, State{}, fmt.Errorf("the journal in %s cannot be gone on from: %w", dir, err)
	}
	return j, state, nil
}

func open(dir string, key []byte, tell func(error)) (j *Journal, err error) {
	s, err := newSeal(key)
	if err != nil {
		return nil, err
	}
	if tell == nil {
		tell = func(error) {}
	}
	j = &Journal{dir: dir, seal: s, tell: tell}
	err = guarded(func() error {
		j.db, err = bolt.Open(filepath.Join(dir, fileName), 0o600, &bolt.Options{
			Timeout: lockBound, NoSync: true, NoGrowSync: true,
			InitialMmapSize: room, FreelistType: bolt.FreelistMapType,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the journal in %s cannot be opened: %w", dir, err)
	}
	return j, nil
}

// reserve makes an empty file of blocks that are there: bbolt takes it as a new
// one only where it is empty, so its size stays 0. Where there is no room, or the
// file system knows no such thing, a write can fail later, which is handled.
func reserve(path string) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	_ = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, room)
	return file.Close()
}

// Epoch is how many heads the session has had, this one included. That of a nil
// Journal is 1.
func (j *Journal) Epoch() uint32 {
	if j == nil {
		return 1
	}
	return j.epoch
}

// Put writes records, all or none. When it returns they survive this process,
// or tell has heard why they do not.
func (j *Journal) Put(records ...Record) {
	j.change(func(tx *bolt.Tx) error {
		for _, r := range records {
			plain, err := r.MarshalMsg(nil)
			if err != nil {
				return err
			}
			if err := j.write(tx, r.bucket(), r.key(), plain); err != nil {
				return err
			}
		}
		return nil
	})
}

// Delete forgets records, all or none; those that are not there are no error.
func (j *Journal) Delete(records ...Record) {
	j.change(func(tx *bolt.Tx) error {
		for _, r := range records {
			b := tx.Bucket([]byte(r.bucket()))
			if b == nil {
				continue
			}
			if err := b.Delete(keyBytes(r.key())); err != nil {
				return err
			}
		}
		return nil
	})
}

// Broken says why the journal is not whole any more; nil while it is.
func (j *Journal) Broken() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.broken
}

// Close lets go of the file, which stays. Nothing is written after it.
func (j *Journal) Close() error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.broken != nil {
		return nil // what is left of a broken one goes with the process
	}
	j.closed = true
	return guarded(j.db.Close)
}

// change writes, one change at a time; the first that fails is the last.
func (j *Journal) change(f func(*bolt.Tx) error) {
	if j == nil {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed || j.broken != nil {
		return
	}
	if err := j.update(f); err != nil {
		j.broken = err
		j.setAside()
		j.tell(fmt.Errorf("the journal of this session cannot be written (%w): all goes on, but if the head ends, no other can take its place", err))
	}
}

func (j *Journal) update(f func(*bolt.Tx) error) error {
	return guarded(func() error { return j.db.Update(f) })
}

// setAside sees to it that nobody takes the journal for a whole one. To rename
// and to remove take no room, as writing a mark would.
func (j *Journal) setAside() {
	path := filepath.Join(j.dir, fileName)
	if err := os.Rename(path, filepath.Join(j.dir, brokenName)); err != nil {
		_ = os.Remove(path)
	}
}

func (j *Journal) writeEpoch(tx *bolt.Tx) error {
	return j.write(tx, metaBucket, epochKey, binary.BigEndian.AppendUint32(nil, j.epoch))
}

func (j *Journal) write(tx *bolt.Tx, bucket string, key uint64, plain []byte) error {
	b, err := tx.CreateBucketIfNotExists([]byte(bucket))
	if err != nil {
		return err
	}
	sealed, err := j.seal.close(bucket, keyBytes(key), plain)
	if err != nil {
		return err
	}
	return b.Put(keyBytes(key), sealed)
}

// keyBytes sorts as the number does.
func keyBytes(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// guarded runs f and makes errors of the faults that a mapped file can give: a
// page that cannot be had is a SIGBUS, and one that holds rubbish leads bbolt
// anywhere.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the file is damaged, or its disk failed: %v", p)
		}
	}()
	if err := f(); err != nil {
		if errors.Is(err, syscall.ENOSPC) {
			return fmt.Errorf("no room is left on the disk: %w", err)
		}
		return err
	}
	return nil
}
