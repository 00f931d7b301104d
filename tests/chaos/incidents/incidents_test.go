//go:build e2e

package incidents

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/fairlead-proxy/fairlead/tests/cluster"
	"github.com/fairlead-proxy/fairlead/tests/cluster/suite"
	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

type row struct {
	name string
	set  func(t *testing.T, w *world) *incident // prepares it
	// first is the command that somebody tries who was told nothing. Empty: status.
	first string
	want  string            // matches the true cause in its output
	more  map[string]string // more commands, and what they must print of the cause
	// then is what the first command prints later, while the incident lasts. Empty: nothing else.
	then string
	// alerts are those that people are told of, separated by |, and empty if there is none.
	alerts string
	lasts  time.Duration // how long it must last until they fire. Zero: a quarter of an hour.
}

// incident is a prepared row.
type incident struct {
	fronts      []*cluster.Front // the first is who is asked
	paths       []string         // what users request. Nil: the healthy extension server
	start, mend func(t *testing.T)
	world       *world // with a cluster of its own. Nil: the shared one
}

// found is when somebody sees the cause: rights are asked for once a minute, files are read as
// often, and this machine is busy.
const found = 2 * time.Minute

func TestIncidents(t *testing.T) {
	w := newWorld(t)
	for _, r := range slices.Concat(own(), dependencies(), backends()) {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			r.run(t, w)
		})
	}
}

func (r row) run(t *testing.T, w *world) {
	i := r.set(t, w)
	if i.world != nil {
		w = i.world
	}
	if i.paths == nil {
		i.paths = []string{widgets("well"), "/version"}
	}
	kubeconfig := filepath.Join(w.dir, strings.ReplaceAll(t.Name(), "/", "-")+".kubeconfig")
	must.Do(t, i.fronts[0].Endpoint.WriteKubeconfig(kubeconfig, w.Admin()))
	try := func(command string) suite.Answer {
		return run(t, w.plugin, append(strings.Fields(command), "--kubeconfig="+kubeconfig)...)
	}
	first := r.first
	if first == "" {
		first = "status"
	}
	says := func(command, want string) { // goes on, because the alerts are a question of their own
		t.Helper()
		var a suite.Answer
		begun := time.Now()
		late := wait.PollUntilContextTimeout(t.Context(), time.Second/2, found, true, func(context.Context) (bool, error) {
			a = try(command)
			return regexp.MustCompile(want).MatchString(a.Out + a.Errs), nil
		})
		if late != nil {
			t.Errorf("%s does not say %q within %s: exit code %d\n%s%s", command, want, found, a.Code, a.Out, a.Errs)
			return
		}
		t.Logf("%s says %q after %s", command, want, time.Since(begun).Round(time.Second/10))
	}
	is := func(phase string, alerts string, at, since time.Duration, h *history) {
		t.Helper()
		firing := w.firing(t, h, at, since)
		if got := strings.Join(w.told(t, firing), "|"); got != alerts {
			t.Errorf("%s: people are told of %q, want %q; firing: %v", phase, got, alerts, firing)
		}
	}
	well := func() {
		t.Helper()
		suite.Eventually(t, found+time.Minute, "all well", func() (bool, string) {
			a := try("status")
			return a.Code == 0 && strings.HasPrefix(a.Out, "Users are served.\n") && !strings.Contains(a.Out, " explain "), fmt.Sprintf("exit code %d\n%s%s", a.Code, a.Out, a.Errs)
		})
	}
	well()
	for _, f := range i.fronts {
		w.load(t, f, i.paths...)
	}
	h := w.watch(t, i.fronts...)
	calm := h.last(t, 10*time.Minute)

	h.changes(true)
	i.start(t)
	says(first, r.want)
	for command, want := range r.more {
		says(command, want)
	}
	if r.then != "" {
		says(first, r.then)
	}
	h.changes(false)
	lasts := r.lasts
	if lasts == 0 {
		lasts = 15 * time.Minute
	}
	broken := h.last(t, lasts)

	h.changes(true)
	i.mend(t)
	well()
	h.changes(false)
	end := h.last(t, 40*time.Minute) // the longest window of an alert that ends by itself is half an hour
	is("before", "", calm, 0, h)
	is("while it lasts", r.alerts, broken, 0, h)
	is("ever", r.alerts, end, end, h)
	is("after the mend", "", end, 0, h)
}
