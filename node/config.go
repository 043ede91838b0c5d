package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/muster-rl/muster/node/course"
	"github.com/muster-rl/muster/node/place"
)

// Config is all that a keeper is told.
type Config struct {
	Place    place.Place
	Need     int // with so many nodes the command starts
	Port     int // Ray's; the board is on the next
	NodeIP   string
	Token    string
	Profile  string
	Set      []string
	Ray      []string // the program that starts Ray
	RayFlags []string
	TempDir  string // Ray's; "": one of our own
	Command  []string
	Limits   course.Limits
	JSON     bool
}

// Default ports and times.
const (
	DefaultPort     = 6379
	DefaultJoin     = 10 * time.Minute
	DefaultStop     = 30 * time.Second
	DefaultFarewell = 10 * time.Second
	DefaultSilence  = 30 * time.Second
	DefaultRefused  = 5
)

// boardPort is where the others hear of the end.
func (c *Config) boardPort() int { return c.Port + 1 }

// Token finds the secret that the replicas have in common, and says where it
// was: a file that was named, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, or the file
// in which Ray itself keeps it.
func Token(file string, env func(string) string) (token, from string, err error) {
	read := func(path, from string) (string, string, error) {
		text, err := os.ReadFile(path)
		token := strings.TrimSpace(string(text))
		switch {
		case err != nil:
			return "", from, fmt.Errorf("%s: the token cannot be read: %w", from, err)
		case token == "":
			return "", from, fmt.Errorf("%s: %s is empty", from, path)
		}
		return token, from, nil
	}
	home := filepath.Join(env("HOME"), ".ray", "auth_token")
	switch {
	case file != "":
		return read(file, "--token-file")
	case strings.TrimSpace(env("RAY_AUTH_TOKEN")) != "":
		return strings.TrimSpace(env("RAY_AUTH_TOKEN")), "RAY_AUTH_TOKEN", nil
	case env("RAY_AUTH_TOKEN_PATH") != "":
		return read(env("RAY_AUTH_TOKEN_PATH"), "RAY_AUTH_TOKEN_PATH")
	}
	if _, err := os.Stat(home); env("HOME") != "" && err == nil {
		return read(home, "~/.ray/auth_token")
	}
	return "", "", nil
}

// NewToken makes a secret.
func NewToken() string { return newNonce() }

// CheckToken says what is missing.
func CheckToken(token, mode string, world int) error {
	switch {
	case mode == "disabled":
		return errors.New("RAY_AUTH_MODE is disabled: muster node starts no Ray that everybody may enter; unset it")
	case token == "" && world > 1:
		return errors.New("there is no token: the replicas need one secret in common, so that nobody else can join; set RAY_AUTH_TOKEN to the same text for all of them, or name a file that has it by --token-file")
	}
	return nil
}

// rayPorts are those that Ray gives to its client server and to workers.
var rayPorts = [2]int{10001, 19999}

// CheckPorts refuses one that something else is to have.
func CheckPorts(port int, env func(string) string) error {
	if port < 1 || port > 65534 {
		return fmt.Errorf("--port %d is not one of 1 to 65534", port)
	}
	if port >= rayPorts[0]-1 && port <= rayPorts[1] {
		return fmt.Errorf("--port %d: Ray gives the ports %d to %d to its workers; take another", port, rayPorts[0], rayPorts[1])
	}
	for _, name := range []string{"MASTER_PORT", "PET_MASTER_PORT"} {
		for _, ours := range []int{port, port + 1} {
			if env(name) == fmt.Sprint(ours) {
				return fmt.Errorf("%s is %d, and Ray and muster node take the ports %d and %d: move one of them, Ray's by --port", name, ours, port, port+1)
			}
		}
	}
	return nil
}

// maxTemp is how long the path of Ray's folder may be: its sockets lie some 65
// characters below, and a socket's path has at most 107.
const maxTemp = 40

// tempDir makes a folder for Ray's session, with a lock that says it is ours.
func tempDir(asked string) (dir string, remove func(keep bool), err error) {
	if asked != "" {
		return asked, func(bool) {}, os.MkdirAll(asked, 0o755)
	}
	base := os.TempDir()
	if len(base)+len("/muster-node-1234567890") > maxTemp {
		base = "/tmp"
	}
	dir, err = os.MkdirTemp(base, "muster-node-")
	if err != nil {
		return "", nil, fmt.Errorf("cannot make a folder for Ray: %w", err)
	}
	return dir, func(keep bool) {
		if !keep {
			_ = os.RemoveAll(dir)
		}
	}, nil
}
