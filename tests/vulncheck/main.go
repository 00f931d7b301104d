// Command vulncheck runs govulncheck on the whole module and distinguishes three results: no known
// vulnerability is reached, one is, or nothing was checked, because the database of vulnerabilities
// cannot be read. The last is not a pass: it is reported, and the exit code is 2, or 0 with
// -unchecked-ok, so that other checks can run without a network.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/tools"
)

// publicDB is govulncheck's default.
const publicDB = "https://vuln.go.dev"

// Exit codes.
const (
	exitFound     = 1
	exitUnchecked = 2
)

// uncheckedError means that nothing was checked.
type uncheckedError struct{ cause error }

func (e uncheckedError) Error() string {
	return "NOT CHECKED for known vulnerabilities: " + e.cause.Error()
}

func main() {
	okay := flag.Bool("unchecked-ok", false, "exit 0 when the database cannot be read")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db := os.Getenv("VULNDB")
	if db == "" {
		db = publicDB
	}
	os.Exit(end(os.Stdout, check(ctx, db, os.Stdout), *okay))
}

// end prints the result and returns the exit code.
func end(out io.Writer, err error, uncheckedOK bool) int {
	unchecked := uncheckedError{}
	switch {
	case err == nil:
		fmt.Fprintln(out, "vulncheck: no known vulnerability is reached")
		return 0
	case errors.As(err, &unchecked):
		fmt.Fprintln(out, "vulncheck:", err)
		if uncheckedOK {
			return 0
		}
		return exitUnchecked
	}
	fmt.Fprintln(out, "vulncheck: FAIL:", err)
	return exitFound
}

// check runs govulncheck with a database.
func check(ctx context.Context, db string, out io.Writer) error {
	if err := reach(ctx, db); err != nil {
		return uncheckedError{err}
	}
	path, err := tools.Path(ctx, tools.Config{Progress: os.Stderr}, "govulncheck")
	if err != nil {
		return uncheckedError{err}
	}
	var output bytes.Buffer
	cmd := exec.CommandContext(ctx, path, "-db", db, "./...")
	cmd.Stdout, cmd.Stderr = io.MultiWriter(out, &output), io.MultiWriter(out, &output)
	err = cmd.Run()
	if err != nil && !strings.Contains(output.String(), "Vulnerability #") {
		return uncheckedError{fmt.Errorf("running govulncheck: %w", err)}
	}
	if err != nil {
		return fmt.Errorf("vulnerabilities are reached: %w", err)
	}
	return nil
}

// reach requests the smallest file of a database.
func reach(ctx context.Context, db string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if dir, ok := strings.CutPrefix(db, "file://"); ok {
		_, err := os.Stat(dir + "/index/db.json")
		return err //nolint:wrapcheck // it names the file
	}
	if _, err := ask.Get(ctx, new(http.Client), db+"/index/db.json"); err != nil {
		return fmt.Errorf("reading database: %w", err)
	}
	return nil
}
