package registry

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"

	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/internal/printable"
	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/shadow"
)

const (
	// shadowInterval is how long a CustomResourceDefinition may be shadowed before it is reported.
	// The request is cheap: the apiserver lists names from its memory.
	shadowInterval = time.Minute
	// shadowPause bounds the requests that new claims cause: tables may follow within milliseconds.
	shadowPause   = time.Second
	shadowTimeout = 10 * time.Second // far more than listing the names of a thousand definitions takes
)

// shadows finds the CustomResourceDefinitions that APIServices shadow. No two APIServices of a cluster can claim one
// group-version, which is their name, but a definition and an APIService can. Its objects are then unreachable.
type shadows struct {
	of     *Registry
	client rest.Interface
	last   string // the last error, so that one outage is logged once
}

// run asks whenever the claims have changed, and every shadowInterval, until ctx ends. It is a reader of the table.
func (s *shadows) run(ctx context.Context) error {
	var due time.Time // when to ask again if the claims do not change
	wake := time.NewTimer(shadowInterval)
	for t, changes := range latest.Changes(ctx, s.of.Table, wake.C) {
		if slices.ContainsFunc(changes, func(c latest.Change[*Entry]) bool { return c.New.Moved(c.Old) }) {
			due = time.Time{}
		}
		if t.complete && !time.Now().Before(due) {
			if s.ask(ctx, t.Claimed()) {
				due = time.Now().Add(shadowInterval)
			}
			wake.Reset(shadowInterval)
		}
		latest.Sleep(ctx, shadowPause)
	}
	return ctx.Err()
}

// ask looks up all claims for the writer, and reports whether that succeeded; else the last result stays.
func (s *shadows) ask(ctx context.Context, claimed []schema.GroupVersion) bool {
	within, cancel := context.WithTimeout(ctx, shadowTimeout)
	defer cancel()
	found, err := shadow.Find(within, s.client, claimed)
	if err != nil {
		if text := err.Error(); ctx.Err() == nil && text != s.last {
			s.last = text
			s.of.log.Warn("finding shadowed CustomResourceDefinitions, the last result is kept", "err", err)
		}
		return false
	}
	s.last = ""
	s.of.changes.record(nil, func(b *batch) { b.shadowed = found })
	return true
}

func nameOf(ref *apiregistrationv1.ServiceReference) types.NamespacedName {
	if ref == nil {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
}

// front sets Entry.Front and FrontSays. An APIService that would only lead back to Fairlead has a fault.
func (b *builder) front(e *Entry, byURL bool) (loop Verdict) {
	ref, own := e.Object.Spec.Service, b.options.Front
	known := behind.Server(e.Object) != ref
	if ref != nil && (known || byURL && nameOf(ref) == own) {
		e.Front = behind.Format(ref)
	}
	if known && own.Name != "" && nameOf(ref) != own {
		e.Problems = append(e.Problems, fmt.Sprintf("annotation %s counts, but the spec names %s, "+
			"which is not Fairlead's: adopt it again, or remove the annotation", behind.Service, behind.Format(ref)))
	}
	if c := helper.GetAPIServiceConditionByType(e.Object, apiregistrationv1.Available); c != nil && e.Front != "" {
		e.FrontSays = fmt.Sprintf("%s, %s: %s", c.Status, bounded(c.Reason), printable.Cause(c.Message))
	}
	if !byURL && serviceOf(e.Object) == own {
		return fault(ReasonServiceAccessError,
			"service/%s in %q is Fairlead's own: annotation %s must name the extension server's",
			own.Name, own.Namespace, behind.Service)
	}
	return loop
}

// Sent returns the table of the APIServices that the cluster's aggregator sends to Fairlead: all that this aggregator
// may be told, or it would tell Fairlead what Fairlead has told it. It is made once, by the first who follows it.
func (t *Table) Sent() *Table {
	t.once.Do(func() {
		t.sent = t.of(slices.DeleteFunc(slices.Clone(t.entries), func(e *Entry) bool { return e.Front == "" }))
	})
	return t.sent
}
