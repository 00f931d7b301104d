//go:build e2e

package h2

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fairlead-proxy/fairlead/tests/kit/check"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
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

// TestInterop sends a body with other HTTP/2 clients, and gets it back.
func TestInterop(t *testing.T) { onDrivers(t, testInterop) }

func testInterop(t *testing.T, driver string) {
	s := newStand(t, driver, httpEcho(), nil)
	want := must.Get(io.ReadAll(io.LimitReader(rand.NewChaCha8([32]byte{1}), 3_000_000)))(t)
	file, echo := filepath.Join(t.TempDir(), "body"), s.url+"/echo"
	must.Do(t, os.WriteFile(file, want, 0o600))
	const node = `
const h2 = require('http2'), fs = require('fs');
const c = h2.connect(process.argv[1], {rejectUnauthorized: false});
const r = c.request({':method': 'POST', ':path': '/echo'});
let trailer = '';
r.on('trailers', t => trailer = t['x-t']);
const out = [];
r.on('data', d => out.push(d));
r.on('end', () => { c.close(); process.stdout.write(Buffer.concat(out)); if (trailer !== 'end') process.exitCode = 3; });
fs.createReadStream(process.argv[2]).pipe(r);`
	for _, command := range [][]string{
		{"curl", "-sSfk", "--http2", "--data-binary", "@" + file, echo},
		{"nghttp", "--no-verify-peer", "-d", file, echo},
		{"nghttp", "--no-verify-peer", "-d", file, "-w", "10", "-W", "10", echo}, // windows of 1 KiB
		{"nghttp", "--no-verify-peer", "-d", file, "-w", "30", "-W", "30", echo}, // and of 1 GiB
		{"node", "-e", node, s.url, file},
	} {
		got := run(t, command[0], command[1:]...)
		check.Same(t, true, got == string(want), "%s got %d bytes, want %d, with the same content", command[0], len(got), len(want))
	}
	check.Same(t, "2 200", run(t, "curl", "-sSfk", "--http2", "-o", os.DevNull, "-w", "%{http_version} %{http_code}", s.url), "what curl prints")
}
