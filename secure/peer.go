package secure

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/muster-rl/muster/spec"
)

// HeadName is the name in the head's certificate.
const HeadName = "head.muster"

const (
	nodePrefix = "node-"
	nodeSuffix = ".muster"
)

// NodeName is the name in the certificate of a node: who dials a node asks for
// it as ServerName, so that no other node can stand in for it.
func NodeName(node int) string { return nodePrefix + strconv.Itoa(node) + nodeSuffix }

// ParseNodeName is the other way round.
func ParseNodeName(name string) (node int, ok bool) {
	text, ok := strings.CutPrefix(name, nodePrefix)
	if !ok {
		return 0, false
	}
	if text, ok = strings.CutSuffix(text, nodeSuffix); !ok {
		return 0, false
	}
	n, err := strconv.ParseUint(text, 10, 31)
	return int(n), err == nil && NodeName(int(n)) == name
}

// NewKey makes a key for a node. It never leaves the process.
func NewKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("no randomness for a key: %w", err)
	}
	return key, nil
}

// Request is what Authority.Sign takes, as PEM.
func Request(key *ecdsa.PrivateKey) ([]byte, error) {
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "agent"}}, key)
	if err != nil {
		return nil, fmt.Errorf("cannot ask for a certificate: %w", err)
	}
	return encode(requestType, raw), nil
}

// Pinned is for an agent that joins: the other end has to be the head of the
// authority that has this pin.
func Pinned(pin string) (*tls.Config, error) {
	if raw, err := hex.DecodeString(pin); err != nil || len(raw) != 32 {
		return nil, spec.Errorf(spec.CodeInvalid, "the pin of the head's certificate is not 64 digits in hex: %q", pin)
	}
	pin = strings.ToLower(pin)
	return &tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: HeadName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it, by the pin
		VerifyConnection:   func(state tls.ConnectionState) error { return checkPin(state, pin) },
	}, nil
}

func checkPin(state tls.ConnectionState, pin string) error {
	certs := state.PeerCertificates
	if len(certs) == 0 {
		return spec.Errorf(spec.CodeAuth, "the other end shows no certificate: it is no head of Muster")
	}
	ca := certs[len(certs)-1]
	if got := pinOf(ca.Raw); got != pin {
		return spec.Errorf(spec.CodeAuth, "the other end is another head than the one that this agent was started for: its certificate's pin is %.12s…, expected %.12s…", got, pin)
	}
	return verify(certs[0], pool(ca), HeadName, x509.ExtKeyUsageServerAuth)
}

func verify(leaf *x509.Certificate, roots *x509.CertPool, name string, usage x509.ExtKeyUsage) error {
	_, err := leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, KeyUsages: []x509.ExtKeyUsage{usage}})
	if err != nil {
		return spec.Errorf(spec.CodeAuth, "the other end is not %s: %v", name, err)
	}
	return nil
}

// Mutual is for nodes among themselves: both ends show a certificate of their
// session. A client says whom it wants by its ServerName, NodeName(n); for a
// http.Transport that is the host in the URL, and DialContext finds the address.
func Mutual(ca, cert []byte, key *ecdsa.PrivateKey) (server, client *tls.Config, err error) {
	root, err := parse(ca)
	if err != nil {
		return nil, nil, err
	}
	leaf, err := parse(cert)
	if err != nil {
		return nil, nil, err
	}
	if public, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !public.Equal(&key.PublicKey) {
		return nil, nil, spec.Errorf(spec.CodeInvalid, "the certificate of %s is for another key", leaf.Subject.CommonName)
	}
	own := []tls.Certificate{{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}}
	server = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: own,
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool(root),
	}
	client = &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: own, RootCAs: pool(root),
		ClientSessionCache: tls.NewLRUClientSessionCache(0),
	}
	return server, client, nil
}

func parse(text []byte) (*x509.Certificate, error) {
	raw, _, err := decode(text, certType)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, spec.Errorf(spec.CodeInvalid, "a certificate that cannot be read: %v", err)
	}
	return cert, nil
}

// Node is which node is at the other end of a connection, by the certificate
// that was checked; false where it showed none.
func Node(state tls.ConnectionState) (int, bool) {
	if len(state.VerifiedChains) == 0 || len(state.PeerCertificates) == 0 {
		return 0, false
	}
	for _, name := range state.PeerCertificates[0].DNSNames {
		if n, ok := ParseNodeName(name); ok {
			return n, true
		}
	}
	return 0, false
}
