// Command reproducible builds the programs of the image twice, from copies of the tracked files in
// two folders of different depth, each with its own build cache, and compares the bytes. So
// everybody can rebuild a release and get the published bytes.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/fairlead-proxy/fairlead/tests/try"
)

func main() {
	version := flag.String("version", "unknown", "the `version` that is linked in")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *version, os.Stdout); err != nil {
		fmt.Fprintln(os.Stdout, "FAIL:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, version string, out io.Writer) (err error) {
	defer try.Catch(&err)
	dir := try.Get(os.MkdirTemp("", "reproducible-"))
	defer func() { _ = os.RemoveAll(dir) }() // a temporary folder
	var built [][]byte
	for i, place := range []string{"a", "deeper/and/elsewhere"} {
		one := build(ctx, filepath.Join(dir, place), filepath.Join(dir, fmt.Sprint("cache", i)), version)
		fmt.Fprintf(out, "%x  %s, %d bytes\n", sha256.Sum256(one), place, len(one))
		built = append(built, one)
	}
	if !bytes.Equal(built[0], built[1]) {
		return fmt.Errorf("two builds of %s differ", version)
	}
	fmt.Fprintln(out, "two builds are equal")
	return nil
}

// build copies the tracked files to src and builds there with the Makefile's own command. It
// returns the programs, one after the other.
func build(ctx context.Context, src, cache, version string) []byte {
	list := try.Get(exec.CommandContext(ctx, "git", "ls-files", "-z").Output())
	for name := range strings.SplitSeq(strings.TrimRight(string(list), "\x00"), "\x00") {
		to := filepath.Join(src, name)
		try.Do(os.MkdirAll(filepath.Dir(to), 0o755))
		try.Do(os.WriteFile(to, try.Get(os.ReadFile(name)), 0o600))
	}
	cmd := exec.CommandContext(ctx, "make", "-s", "build", "VERSION="+version)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "GOCACHE="+cache, "GOFLAGS=")
	if output, err := cmd.CombinedOutput(); err != nil {
		try.Do(fmt.Errorf("building in %s: %w\n%s", src, err, output))
	}
	bin := filepath.Join(src, "bin")
	return append(try.Get(os.ReadFile(filepath.Join(bin, "fairlead"))), try.Get(os.ReadFile(filepath.Join(bin, "kubectl-fairlead")))...)
}
