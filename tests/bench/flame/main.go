// Command flame draws a CPU profile as a flame graph (SVG), as docs/evidence/measurements.md shows
// them: the whole width is all samples, a call stands on its caller, and what is narrower than a
// hundredth of a picture is left out.
//
//	go run ./tests/bench -bin bin/fairlead -scenarios get-8x8 -peers fairlead -profile -out DIR
//	go run ./tests/bench/flame -title '…' DIR/get-8x8.pprof > docs/flame-frame.svg
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

func main() {
	title := flag.String("title", "", "`text` above the picture")
	flag.Parse()
	if err := run(context.Background(), *title, flag.Args(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "flame:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, title string, args []string, w io.Writer) error {
	if len(args) != 1 {
		return errors.New("one profile is wanted")
	}
	text, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-traces", args[0]).Output()
	if err != nil {
		return fmt.Errorf("reading profile: %w", err)
	}
	root, err := parse(bytes.NewReader(text))
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, draw(title, root))
	return err
}

// call is a function as called by its parents.
type call struct {
	name  string
	spent time.Duration
	calls []*call // in the order first seen
}

// add spends d in the last of a stack that begins with the outermost function.
func (c *call) add(stack []string, d time.Duration) {
	c.spent += d
	if len(stack) == 0 {
		return
	}
	for _, x := range c.calls {
		if x.name == stack[0] {
			x.add(stack[1:], d)
			return
		}
	}
	x := &call{name: stack[0]}
	c.calls = append(c.calls, x)
	x.add(stack[1:], d)
}

// parse reads what pprof -traces prints: behind each line of dashes a stack from the inside out,
// the time spent before its first function.
func parse(r io.Reader) (*call, error) {
	root := &call{name: "all"}
	var stack []string
	var spent time.Duration
	flush := func() {
		if len(stack) > 0 && spent > 0 {
			root.add(stack, spent)
		}
		stack, spent = nil, 0
	}
	began := false
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		if strings.HasPrefix(line, "-----------+") {
			flush()
			began = true
			continue
		}
		fields := strings.Fields(line)
		if !began || len(fields) == 0 {
			continue
		}
		if d, err := time.ParseDuration(fields[0]); err == nil && len(fields) > 1 {
			spent, fields = d, fields[1:]
		}
		name := strings.TrimSuffix(strings.Join(fields, " "), " (inline)")
		stack = append([]string{name}, stack...)
	}
	flush()
	if root.spent == 0 {
		return nil, errors.New("the profile has no samples")
	}
	return root, lines.Err() //nolint:wrapcheck // of a string
}
