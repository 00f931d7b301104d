package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// A unit of Type=notify is told when this process is ready, not before, and when it begins to stop.
func TestSystemdIsNotified(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l := must.Get(net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}))(t)
	defer l.Close()
	t.Setenv("NOTIFY_SOCKET", socket)
	told := func() string {
		t.Helper()
		b := make([]byte, 256)
		must.Do(t, l.SetReadDeadline(time.Now().Add(20*time.Second)))
		n := must.Get(l.Read(b))(t)
		return string(b[:n])
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	o, _ := directoryOptions(t)
	go func() { ended <- run(ctx, o, slog.New(slog.DiscardHandler)) }()
	if got := told(); got != "READY=1" {
		t.Errorf("systemd is told %q at the start, want READY=1", got)
	}
	stop()
	if got := told(); got != "STOPPING=1" {
		t.Errorf("systemd is told %q at the end, want STOPPING=1", got)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// The unit's command line is one that serve takes.
func TestUnitFile(t *testing.T) {
	unit := must.Get(os.ReadFile("../../deploy/systemd/fairlead.service"))(t)
	_, rest, ok := strings.Cut(string(unit), "ExecStart=")
	command, _, _ := strings.Cut(strings.ReplaceAll(rest, "\\\n", " "), "\n")
	words := strings.Fields(command)
	if !ok || len(words) < 2 || words[1] != "serve" {
		t.Fatalf("ExecStart is %q, want fairlead serve", command)
	}
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	new(options).addFlags(fs)
	for _, w := range words[2:] {
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		if w != "$FAIRLEAD_FLAGS" && fs.Lookup(name) == nil {
			t.Errorf("%q is no flag of serve", w)
		}
	}
	for _, line := range []string{"Type=notify", "KillMode=mixed", "LimitNOFILE="} {
		if !strings.Contains(string(unit), "\n"+line) {
			t.Errorf("the unit has no line %s…", line)
		}
	}
}

func TestJWTBesideLocalAPIServer(t *testing.T) {
	text := "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer: {url: https://issuer.example.com, audiences: [a]}\n" +
		"  claimMappings: {username: {claim: sub, prefix: ''}}\n"
	file := writeFile(t, filepath.Join(t.TempDir(), "authentication.yaml"), text)
	d := &door{o: &options{authConfig: file}}
	err := d.makeTokens()[0].Take([]byte(text))
	if err == nil || !strings.Contains(err.Error(), "jwt: the local apiserver authenticates all tokens") || strings.Contains(err.Error(), "\n") {
		t.Errorf("jwt beside a local apiserver gives %v, want one line that says who judges tokens", err)
	}
	d.o.registry = "dir:/x"
	if err := d.makeTokens()[0].Take([]byte(text)); err != nil {
		t.Errorf("jwt without a local apiserver gives %v", err)
	}
}
