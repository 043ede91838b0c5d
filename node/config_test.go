package node

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func environment(set map[string]string) func(string) string {
	return func(name string) string { return set[name] }
}

func TestTokens(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	file, empty := write("a", " file \n"), write("b", "\n")
	write(".ray/auth_token", "home\n")
	for _, c := range []struct {
		name, file string
		env        map[string]string
		want, from string
		err        string
	}{
		{name: "none", env: map[string]string{"HOME": filepath.Join(dir, "nobody")}},
		{name: "a file before all", file: file, env: map[string]string{"RAY_AUTH_TOKEN": "x"}, want: "file", from: "--token-file"},
		{name: "the variable", env: map[string]string{"RAY_AUTH_TOKEN": "x\n", "RAY_AUTH_TOKEN_PATH": file}, want: "x", from: "RAY_AUTH_TOKEN"},
		{name: "a path", env: map[string]string{"RAY_AUTH_TOKEN_PATH": file, "HOME": dir}, want: "file", from: "RAY_AUTH_TOKEN_PATH"},
		{name: "Ray's own", env: map[string]string{"HOME": dir}, want: "home", from: "~/.ray/auth_token"},
		{name: "an empty file", file: empty, err: "is empty"},
		{name: "no file", file: filepath.Join(dir, "none"), err: "--token-file: the token cannot be read"},
	} {
		token, from, err := Token(c.file, environment(c.env))
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: got %v", c.name, err)
			}
			continue
		}
		if err != nil || token != c.want || from != c.from {
			t.Errorf("%s: got %q from %q, %v", c.name, token, from, err)
		}
	}
	for _, c := range []struct {
		token, mode string
		world       int
		want        string
	}{
		{"", "", 1, ""}, {"x", "", 3, ""}, {"x", "token", 3, ""},
		{"", "", 2, "there is no token"}, {"x", "disabled", 1, "RAY_AUTH_MODE is disabled"},
	} {
		err := CheckToken(c.token, c.mode, c.world)
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func TestPorts(t *testing.T) {
	for _, c := range []struct {
		port   int
		master string
		want   string
	}{
		{6379, "29500", ""}, {6379, "", ""}, {65534, "", ""}, {20000, "", ""},
		{0, "", "--port 0 is not"}, {65535, "", "--port 65535 is not"}, {12000, "", "--port 12000: Ray gives"}, {10000, "", "--port 10000: Ray gives"},
		{29499, "29500", "MASTER_PORT is 29500, and Ray and muster node take the ports 29499 and 29500"},
		{29500, "29500", "MASTER_PORT is 29500"},
	} {
		err := CheckPorts(c.port, environment(map[string]string{"MASTER_PORT": c.master}))
		if (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

func TestRayFlags(t *testing.T) {
	for flag, want := range map[string]string{
		"--num-gpus=8": "", "--include-dashboard=true": "",
		"--head": "sets --head by itself", "--port=1": "sets --port by itself", "num-gpus=8": "is no flag of ray start",
	} {
		err := CheckRayFlags([]string{flag})
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", flag, err)
		}
	}
	self := netip.MustParseAddr("fd00::2")
	head := quoted(startWords([]string{"py", "-m", "x"}, "", self, 7000, "/t", []string{"--num-gpus=8"}))
	if want := "py -m x start --block --disable-usage-stats --node-ip-address=fd00::2 --temp-dir=/t --head --port=7000 --include-dashboard=false --num-gpus=8"; head != want {
		t.Errorf("got  %s\nwant %s", head, want)
	}
	join := quoted(startWords([]string{"ray"}, "[fd00::1]:7000", self, 7000, "/t", nil))
	if want := "ray start --block --disable-usage-stats --node-ip-address=fd00::2 --temp-dir=/t --address=[fd00::1]:7000"; join != want {
		t.Errorf("got  %s\nwant %s", join, want)
	}
}

func TestDomains(t *testing.T) {
	hosts := "# comment job-1.commented\n127.0.0.1 localhost\n\n10.0.0.5\tjob-1.train.ns.svc.cluster.local\tjob-1 # mine\n10.0.0.6 job-10.other x\n"
	for host, want := range map[string]string{"job-1": "train.ns.svc.cluster.local", "job-10": "other", "job-2": "", "localhost": ""} {
		if got := Domain(host, hosts); got != want {
			t.Errorf("%s: got %q", host, got)
		}
	}
}

func TestWhichAddressRankZeroHas(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if got, err := leaderAddress(ctx, "127.0.0.1", "whatever.invalid"); err != nil || got.Interface != "lo" {
		t.Errorf("asked for: got %+v, %v", got, err)
	}
	if _, err := leaderAddress(ctx, "192.0.2.77", ""); err == nil || !strings.HasPrefix(err.Error(), "--node-ip 192.0.2.77 is not an address of this host") {
		t.Errorf("another host's: got %v", err)
	}
	if _, err := leaderAddress(ctx, "x", ""); err == nil || err.Error() != `--node-ip "x" is no address` {
		t.Errorf("no address: got %v", err)
	}
	if _, err := leaderAddress(ctx, "", "192.0.2.77"); err == nil || !strings.Contains(err.Error(), "two replicas were given rank 0") {
		t.Errorf("another host: got %v", err)
	}
	if got, err := leaderAddress(ctx, "", "127.0.0.1"); err != nil || !got.Address.IsValid() {
		t.Errorf("a loopback name: got %+v, %v", got, err)
	}
	if _, err := leaderAddress(ctx, "", "no-such-host.invalid"); err == nil || !strings.HasPrefix(err.Error(), "the leader's name no-such-host.invalid cannot be looked up: ") {
		t.Errorf("no name: got %v", err)
	}
}

func TestInterpretersOfScripts(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{
		"#!/opt/venv/bin/python3.11\nimport x\n": "/opt/venv/bin/python3.11", "#!/bin/sh\n": "", "#!/usr/bin/env python\n": "", "\x7fELF": "", "": "",
	} {
		path := filepath.Join(dir, "ray")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := shebang(path); got != want {
			t.Errorf("%q: got %q", text, got)
		}
	}
}

func TestTheTellingLine(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  string
	}{
		{nil, ""},
		{[]string{"a", "b"}, "b"},
		{[]string{"Traceback", "ValueError: port 1 is taken", "Port information: {}"}, "ValueError: port 1 is taken"},
		{[]string{"  raise ValueError(", "ray.exceptions.RayError: x: y"}, "ray.exceptions.RayError: x: y"},
	} {
		if got := telling(c.lines); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
