//go:build e2e

package h2

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// run runs a tool that must be installed.
func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).Output()
	if err != nil {
		output := out[max(0, len(out)-4<<10):]
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			output = append(output, exit.Stderr...)
		}
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, output)
	}
	return string(out)
}

// TestH2spec runs the conformance suite against forwarding and against the server's own answers.
func TestH2spec(t *testing.T) {
	lines := strings.Fields(run(t, "go", "run", "github.com/fairlead-proxy/fairlead/tests/tools/build", "h2spec"))
	h2spec := lines[len(lines)-1]
	onDrivers(t, func(t *testing.T, driver string) {
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "answer")
		})
		for _, where := range []string{"forward", "local"} {
			t.Run(where, func(t *testing.T) {
				s := newStand(t, driver, answer, func(_ *Head, p *Plan) {
					if where == "local" {
						p.Forward, p.Serve = nil, answer
					}
				})
				host, port := must.Get2(net.SplitHostPort(s.addr))(t)
				out := run(t, h2spec, "--host", host, "--port", port, "--tls", "--insecure", "--timeout", "5")
				if !strings.Contains(out, " 0 failed") {
					t.Errorf("%s", out)
				}
			})
		}
	})
}

// TestInterop gets and sends bodies with other HTTP/2 clients.
func TestInterop(t *testing.T) { onDrivers(t, testInterop) }

func testInterop(t *testing.T, driver string) {
	s := newStand(t, driver, httpEcho(), nil)
	const size = 3_000_000
	want := make([]byte, 0, size)
	for len(want) < size {
		want = append(want, leanBody[:min(len(leanBody), size-len(want))]...)
	}
	file := filepath.Join(t.TempDir(), "body")
	must.Do(t, os.WriteFile(file, want, 0o600))
	sum := fmt.Sprintf("%x", sha256.Sum256(want))
	same := func(got string) {
		t.Helper()
		if fmt.Sprintf("%x", sha256.Sum256([]byte(got))) != sum {
			t.Errorf("got %d bytes, want %d, or their content differs", len(got), size)
		}
	}
	t.Run("curl", func(t *testing.T) {
		same(run(t, "curl", "-sSfk", "--http2", fmt.Sprintf("%s/%d", s.url, size)))
		same(run(t, "curl", "-sSfk", "--http2", "--data-binary", "@"+file, s.url+"/echo"))
		if got := run(t, "curl", "-sSfk", "--http2", "-o", os.DevNull, "-w", "%{http_version} %{http_code}", s.url+"/1"); got != "2 200" {
			t.Errorf("curl printed %q", got)
		}
	})
	t.Run("nghttp", func(t *testing.T) {
		same(run(t, "nghttp", "--no-verify-peer", fmt.Sprintf("%s/%d", s.url, size)))
		same(run(t, "nghttp", "--no-verify-peer", "-d", file, s.url+"/echo"))
		same(run(t, "nghttp", "--no-verify-peer", "-w", "10", "-W", "10", fmt.Sprintf("%s/%d", s.url, size))) // windows of 1 KiB
		same(run(t, "nghttp", "--no-verify-peer", "-w", "30", "-W", "30", fmt.Sprintf("%s/%d", s.url, size))) // and of 1 GiB
	})
	t.Run("node", func(t *testing.T) {
		const script = `
const h2 = require('http2'), fs = require('fs');
const c = h2.connect(process.argv[1], {rejectUnauthorized: false});
const r = c.request({':method': 'POST', ':path': '/echo'});
let trailer = '';
r.on('trailers', t => trailer = t['x-t']);
const out = [];
r.on('data', d => out.push(d));
r.on('end', () => { c.close(); process.stdout.write(Buffer.concat(out)); if (trailer !== 'end') process.exitCode = 3; });
fs.createReadStream(process.argv[2]).pipe(r);`
		same(run(t, "node", "-e", script, s.url, file))
	})
}

// TestGigabyte passes 1 GiB each way, byte for byte.
func TestGigabyte(t *testing.T) { onDrivers(t, testGigabyte) }

func testGigabyte(t *testing.T, driver string) {
	const size = 1 << 30
	s := newStand(t, driver, httpEcho(), nil)
	s.client.Timeout = 0
	up, down := sha256.New(), sha256.New()
	body := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), up)
	req := must.Get(http.NewRequestWithContext(t.Context(), http.MethodPost, s.url+"/echo", body))(t)
	res := must.Get(s.client.Do(req))(t)
	defer res.Body.Close()
	n, err := io.Copy(down, res.Body)
	if err != nil || n != size || !bytes.Equal(up.Sum(nil), down.Sum(nil)) {
		t.Errorf("%d of %d bytes came back: %v; equal: %v", n, int64(size), err, bytes.Equal(up.Sum(nil), down.Sum(nil)))
	}
}
