package secure_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/muster-rl/muster/secure"
	"github.com/muster-rl/muster/spec"
)

func authority(t *testing.T) *secure.Authority {
	t.Helper()
	a, err := secure.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// node is a node that has its certificate.
func node(t *testing.T, a *secure.Authority, n int) (server, client *tls.Config) {
	t.Helper()
	key, err := secure.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	req, err := secure.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Sign(req, "host", n)
	if err != nil {
		t.Fatal(err)
	}
	server, client, err = secure.Mutual(a.CA(), cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return server, client
}

// meet lets two ends speak: what each says of it, and the server's view.
func meet(t *testing.T, server, client *tls.Config) (state tls.ConnectionState, serverErr, clientErr error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	done := make(chan error, 1)
	go func() {
		nc, err := listener.Accept()
		if err != nil {
			done <- err
			return
		}
		defer nc.Close()
		c := tls.Server(nc, server)
		if err = c.Handshake(); err == nil {
			state = c.ConnectionState()
			_, err = c.Write([]byte("hello"))
		}
		done <- err
	}()
	nc, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	c := tls.Client(nc, client)
	// In TLS 1.3 a client learns at its first read that it was refused.
	_, clientErr = io.ReadFull(c, make([]byte, 5))
	_ = nc.Close()
	return state, <-done, clientErr
}

func pinned(t *testing.T, pin string) *tls.Config {
	t.Helper()
	c, err := secure.Pinned(pin)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func named(c *tls.Config, node int) *tls.Config {
	c = c.Clone()
	c.ServerName = secure.NodeName(node)
	return c
}

func TestAnAgentFindsItsHeadByThePin(t *testing.T) {
	a := authority(t)
	state, serverErr, clientErr := meet(t, a.ServerConfig(), pinned(t, strings.ToUpper(a.Pin())))
	if serverErr != nil || clientErr != nil {
		t.Fatal(serverErr, clientErr)
	}
	if state.Version != tls.VersionTLS13 {
		t.Errorf("version %x", state.Version)
	}
	if n, ok := secure.Node(state); ok {
		t.Errorf("one that shows no certificate is node %d", n)
	}
}

func TestAnotherHeadIsRefused(t *testing.T) {
	_, _, err := meet(t, authority(t).ServerConfig(), pinned(t, authority(t).Pin()))
	var told *spec.Error
	if !errors.As(err, &told) || told.Code != spec.CodeAuth || !strings.Contains(told.Message, "another head") {
		t.Errorf("got %v", err)
	}
}

// The certificate of a node is signed by the same authority, and shows its chain.
func TestANodeIsNoHead(t *testing.T) {
	a := authority(t)
	server, _ := node(t, a, 3)
	block, _ := pem.Decode(a.CA())
	server.Certificates[0].Certificate = append(server.Certificates[0].Certificate, block.Bytes)
	server.ClientAuth = tls.NoClientCert
	_, _, err := meet(t, server, pinned(t, a.Pin()))
	if err == nil || !strings.Contains(err.Error(), secure.HeadName) {
		t.Errorf("got %v", err)
	}
}

func TestNodesAmongThemselves(t *testing.T) {
	a := authority(t)
	server, _ := node(t, a, 1)
	_, client := node(t, a, 2)
	state, serverErr, clientErr := meet(t, server, named(client, 1))
	if n, ok := secure.Node(state); serverErr != nil || clientErr != nil || !ok || n != 2 {
		t.Errorf("node %d, %v; %v, %v", n, ok, serverErr, clientErr)
	}
	if state, serverErr, clientErr = meet(t, a.ServerConfig(), func() *tls.Config {
		c := client.Clone()
		c.ServerName = secure.HeadName
		return c
	}()); serverErr != nil || clientErr != nil {
		t.Error("to the head:", serverErr, clientErr)
	}
	if n, ok := secure.Node(state); !ok || n != 2 {
		t.Error("the head takes it for", n, ok)
	}
	if _, _, err := meet(t, server, named(client, 7)); err == nil || !strings.Contains(err.Error(), secure.NodeName(7)) {
		t.Errorf("another node than the one that was wanted: %v", err)
	}
	_, foreign := node(t, authority(t), 2)
	if _, serverErr, clientErr := meet(t, server, named(foreign, 1)); serverErr == nil || clientErr == nil {
		t.Error("a node of another session got in")
	}
	if _, serverErr, _ := meet(t, server, pinned(t, a.Pin())); serverErr == nil {
		t.Error("one without a certificate got in")
	}
}

func TestAHeadThatComesAfterIsTheSame(t *testing.T) {
	a := authority(t)
	text, err := a.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	b, err := secure.Load(text)
	if err != nil {
		t.Fatal(err)
	}
	if a.Pin() != b.Pin() {
		t.Error("another pin")
	}
	if _, s, c := meet(t, b.ServerConfig(), pinned(t, a.Pin())); s != nil || c != nil {
		t.Error(s, c)
	}
	server, _ := node(t, a, 1)
	_, client := node(t, b, 2)
	if _, s, c := meet(t, server, named(client, 1)); s != nil || c != nil {
		t.Error(s, c)
	}
}

func TestWhatIsNoRequest(t *testing.T) {
	a := authority(t)
	large, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	other, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, large)
	if err != nil {
		t.Fatal(err)
	}
	forged := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: []byte("rubbish")})
	for name, csr := range map[string][]byte{
		"nothing": nil, "text": []byte("hello"), "a certificate": a.CA(), "rubbish inside": forged,
		"another curve": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: other}),
		"too large":     make([]byte, 1<<20),
	} {
		if _, err := a.Sign(csr, "host", 1); spec.AsError(err).Code != spec.CodeInvalid {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACertificateIsForItsKey(t *testing.T) {
	a := authority(t)
	key, _ := secure.NewKey()
	other, _ := secure.NewKey()
	req, err := secure.Request(key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := a.Sign(req, "host-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := secure.Mutual(a.CA(), cert, other); err == nil || !strings.Contains(err.Error(), "host-1") {
		t.Errorf("got %v", err)
	}
}

func TestPins(t *testing.T) {
	for _, pin := range []string{"", "abc", strings.Repeat("g", 64), strings.Repeat("a", 66)} {
		if _, err := secure.Pinned(pin); err == nil {
			t.Errorf("%q is a pin", pin)
		}
	}
}

func TestNamesOfNodes(t *testing.T) {
	for _, n := range []int{0, 1, 4095} {
		if got, ok := secure.ParseNodeName(secure.NodeName(n)); !ok || got != n {
			t.Errorf("%d: %d, %v", n, got, ok)
		}
	}
	for _, name := range []string{"", secure.HeadName, "node-.muster", "node-01.muster", "node--1.muster", "node-1", "1.muster", "node-99999999999.muster"} {
		if n, ok := secure.ParseNodeName(name); ok {
			t.Errorf("%q is node %d", name, n)
		}
	}
}

func FuzzParse(f *testing.F) {
	a, err := secure.NewAuthority()
	if err != nil {
		f.Fatal(err)
	}
	key, err := secure.NewKey()
	if err != nil {
		f.Fatal(err)
	}
	req, err := secure.Request(key)
	if err != nil {
		f.Fatal(err)
	}
	kept, err := a.Marshal()
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{req, kept, a.CA(), []byte("-----BEGIN CERTIFICATE-----")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if cert, err := a.Sign(text, "host", 1); err == nil {
			if _, _, err := secure.Mutual(a.CA(), cert, key); err != nil && !strings.Contains(err.Error(), "another key") {
				t.Error(err)
			}
		}
		if b, err := secure.Load(text); err == nil {
			if _, err := b.Marshal(); err != nil {
				t.Error(err)
			}
		}
		_, _, _ = secure.Mutual(text, text, key)
		_, _ = secure.Pinned(string(text))
	})
}
