//go:build e2e

package operate

import (
	"context"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fairlead-proxy/fairlead/tests/ask"
	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/must"
	"github.com/fairlead-proxy/fairlead/tests/suite"
)

func command(t *testing.T, stdin, name string, args ...string) suite.Answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return suite.Run(t, exec.CommandContext(ctx, name, args...), stdin)
}

func succeed(t *testing.T, stdin, name string, args ...string) string {
	t.Helper()
	a := command(t, stdin, name, args...)
	if a.Code != 0 {
		t.Fatalf("%s %s: exit code %d\n%s%s", filepath.Base(name), strings.Join(args, " "), a.Code, a.Out, a.Errs)
	}
	return a.Out
}

// get sends a GET with a token, or as a member of system:masters without one, and returns code and
// body.
func (w *world) get(t *testing.T, e cluster.Endpoint, path, token string) (int, string) {
	t.Helper()
	who := cluster.Credentials{Token: token}
	if token == "" {
		who = w.Admin()
	}
	client := suite.Client(t, e, who)
	client.CheckRedirect = nil // follows redirects, as a browser does
	defer client.CloseIdleConnections()
	reply := must.Get(ask.Do(t.Context(), client, http.MethodGet, e.URL+path, nil, ""))(t)
	return reply.Code, reply.Body
}

// wants fails the test unless a GET with a token has the status.
func (w *world) wants(t *testing.T, want int, e cluster.Endpoint, path, token string) {
	t.Helper()
	if code, body := w.get(t, e, path, token); code != want {
		t.Errorf("%s: status %d, want %d: %s", path, code, want, body)
	}
}

// serves waits until a GET with a token succeeds, because recent changes may not be known yet.
func (w *world) serves(t *testing.T, most time.Duration, e cluster.Endpoint, path, token string) {
	t.Helper()
	suite.Eventually(t, most, path+" is served", func() (bool, string) {
		code, body := w.get(t, e, path, token)
		return code == http.StatusOK, fmt.Sprint(code, " ", body)
	})
}
