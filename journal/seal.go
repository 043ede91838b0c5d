package journal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"errors"
	"fmt"
)

const keySize = 32

// seal closes and opens values. Each is bound to its place, so that none can be
// put in another's.
type seal struct{ aead cipher.AEAD }

func newSeal(key []byte) (*seal, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("the journal's key: %w", err)
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, fmt.Errorf("the journal's key: %w", err)
	}
	return &seal{aead}, nil
}

func place(bucket string, key []byte) []byte { return append([]byte(bucket+"\x00"), key...) }

func (s *seal) close(bucket string, key, plain []byte) ([]byte, error) {
	nonce := make([]byte, s.aead.NonceSize(), s.aead.NonceSize()+len(plain)+s.aead.Overhead())
	if _, err := rand.Read(nonce); err != nil {
		return nil, fmt.Errorf("no randomness to seal with: %w", err)
	}
	return s.aead.Seal(nonce, nonce, plain, place(bucket, key)), nil
}

func (s *seal) open(bucket string, key, sealed []byte) ([]byte, error) {
	n := s.aead.NonceSize()
	if len(sealed) < n {
		return nil, errors.New("a value is cut short")
	}
	plain, err := s.aead.Open(nil, sealed[:n], sealed[n:], place(bucket, key))
	if err != nil {
		return nil, errors.New("a value does not open with this key: it was damaged, or comes from elsewhere")
	}
	return plain, nil
}
