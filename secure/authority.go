package secure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	"github.com/muster-rl/muster/spec"
)

const (
	certType    = "CERTIFICATE"
	keyType     = "EC PRIVATE KEY"
	requestType = "CERTIFICATE REQUEST"
	serialBits  = 120
	maxPEM      = 16 << 10 // of what others send; a certificate here has 1 KiB
)

// Clocks of nodes differ, and jump. A certificate here is good for as long as
// its session, whatever they say: RFC 5280 has this date for "no end".
func validity() (from, to time.Time) {
	return time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
}

// Authority signs for one session. Its methods may be called concurrently.
type Authority struct {
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	server tls.Certificate // the head's own
}

// NewAuthority makes one with a new key.
func NewAuthority() (*Authority, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	template, err := template("Muster session")
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign
	raw, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("cannot make the session's certificate: %w", err)
	}
	return newAuthority(key, raw)
}

func newAuthority(key *ecdsa.PrivateKey, raw []byte) (*Authority, error) {
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, fmt.Errorf("the session's certificate cannot be read: %w", err)
	}
	public, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok || !cert.IsCA || !public.Equal(&key.PublicKey) {
		return nil, errors.New("the session's certificate and its key do not belong together")
	}
	a := &Authority{key: key, cert: cert}
	own, err := NewKey()
	if err != nil {
		return nil, err
	}
	leaf, err := a.certify(&own.PublicKey, "head", HeadName, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return nil, err
	}
	a.server = tls.Certificate{Certificate: [][]byte{leaf, cert.Raw}, PrivateKey: own}
	return a, nil
}

// Marshal is what Load takes. It holds the key: keep it sealed.
func (a *Authority) Marshal() ([]byte, error) {
	key, err := x509.MarshalECPrivateKey(a.key)
	if err != nil {
		return nil, fmt.Errorf("the session's key cannot be written: %w", err)
	}
	return append(encode(certType, a.cert.Raw), encode(keyType, key)...), nil
}

// Load makes the authority again that Marshal wrote.
func Load(data []byte) (*Authority, error) {
	raw, rest, err := decode(data, certType)
	if err != nil {
		return nil, err
	}
	secret, _, err := decode(rest, keyType)
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(secret)
	if err != nil {
		return nil, fmt.Errorf("the session's key cannot be read: %w", err)
	}
	return newAuthority(key, raw)
}

// CA is its certificate, as PEM.
func (a *Authority) CA() []byte { return encode(certType, a.cert.Raw) }

// Pin is what tells its certificate from every other: SHA-256, in hex.
func (a *Authority) Pin() string { return pinOf(a.cert.Raw) }

func pinOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// ServerConfig is for the head's listener. A node that has a certificate may
// show it; who shows none has to prove itself by a token.
func (a *Authority) ServerConfig() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{a.server},
		ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool(a.cert),
		SessionTicketsDisabled: true, // agents join once, and rarely again
	}
}

// Sign makes the certificate of a node, as PEM, from what Request made there.
// Of the request only the key counts. The caller has checked who asks.
func (a *Authority) Sign(csr []byte, name string, node int) ([]byte, error) {
	raw, _, err := decode(csr, requestType)
	if err != nil {
		return nil, err
	}
	req, err := x509.ParseCertificateRequest(raw)
	if err == nil {
		err = req.CheckSignature()
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeInvalid, "the request for a certificate cannot be read: %v", err)
	}
	public, ok := req.PublicKey.(*ecdsa.PublicKey)
	if !ok || public.Curve != elliptic.P256() {
		return nil, spec.Errorf(spec.CodeInvalid, "the request for a certificate has another kind of key than ECDSA P-256")
	}
	leaf, err := a.certify(public, name, NodeName(node), x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return nil, err
	}
	return encode(certType, leaf), nil
}

func (a *Authority) certify(public *ecdsa.PublicKey, name, host string, usage ...x509.ExtKeyUsage) ([]byte, error) {
	t, err := template(name)
	if err != nil {
		return nil, err
	}
	t.DNSNames, t.KeyUsage, t.ExtKeyUsage = []string{host}, x509.KeyUsageDigitalSignature, usage
	raw, err := x509.CreateCertificate(rand.Reader, t, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("cannot sign the certificate of %s: %w", name, err)
	}
	return raw, nil
}

func template(name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("no randomness for a certificate: %w", err)
	}
	from, to := validity()
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: from, NotAfter: to,
	}, nil
}

func encode(kind string, raw []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw})
}

// decode reads the first block of text, which has to be of a kind.
func decode(text []byte, kind string) (raw, rest []byte, err error) {
	if len(text) > maxPEM {
		return nil, nil, spec.Errorf(spec.CodeInvalid, "a %s of %d bytes, more than the %d that one can have", kind, len(text), maxPEM)
	}
	block, rest := pem.Decode(text)
	if block == nil || block.Type != kind {
		return nil, nil, spec.Errorf(spec.CodeInvalid, "expected a %s as PEM", kind)
	}
	return block.Bytes, rest, nil
}

func pool(cert *x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(cert)
	return p
}
