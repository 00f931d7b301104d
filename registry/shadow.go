package registry

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/fairlead-proxy/fairlead/registry/latest"
	"github.com/fairlead-proxy/fairlead/registry/shadow"
)

const (
	// shadowInterval is for how long a CustomResourceDefinition may be hidden before it is reported. A question is a list of names from the apiserver's memory.
	shadowInterval = time.Minute
	// shadowPause bounds how often new claims make us ask: tables may follow each other within milliseconds.
	shadowPause = time.Second
	// shadowTimeout is far more than the list of the names of a thousand definitions takes.
	shadowTimeout = 10 * time.Second
)

// shadows finds the CustomResourceDefinitions that an APIService hides: in a cluster no two APIServices can claim one group-version, since it is their name, but
// a definition and an APIService can. The objects are still there then, and nobody can reach them.
type shadows struct {
	client rest.Interface
	table  func() *Table
	to     *changes
	// failed is told of each failure that is not the last one again.
	failed func(error)
	last   string
}

// run asks whenever the claims have changed, and from time to time, until ctx ends. It is a reader of the table like any other.
func (s *shadows) run(ctx context.Context) error {
	var due time.Time // to ask, though the claims are the same
	wake := time.NewTimer(shadowInterval)
	defer wake.Stop()
	for t, changes := range latest.Changes(ctx, s.table, wake.C) {
		if slices.ContainsFunc(changes, claims) {
			due = time.Time{}
		}
		if t.complete && !time.Now().Before(due) {
			if s.ask(ctx, t.claimed()) {
				due = time.Now().Add(shadowInterval)
			}
			wake.Reset(shadowInterval)
		}
		select {
		case <-time.After(shadowPause):
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// claims reports whether a change is one of what remotes claim.
func claims(c latest.Change[*Entry]) bool {
	return c.Old == nil || c.New == nil || c.Old.Local() != c.New.Local()
}

// claimed are the group-versions that remotes claim, in the table's order.
func (t *Table) claimed() []schema.GroupVersion {
	out := make([]schema.GroupVersion, 0, len(t.entries))
	for _, e := range t.entries {
		if !e.Local() {
			out = append(out, e.GroupVersion)
		}
	}
	return out
}

// ask finds out about all claims and tells the writer. False: it has failed, and what was known stays.
func (s *shadows) ask(ctx context.Context, claimed []schema.GroupVersion) bool {
	within, cancel := context.WithTimeout(ctx, shadowTimeout)
	defer cancel()
	found, err := shadow.Find(within, s.client, claimed)
	if err != nil {
		if text := err.Error(); ctx.Err() == nil && text != s.last {
			s.last = text
			s.failed(err)
		}
		return false
	}
	s.last = ""
	s.to.shadow(found)
	return true
}
