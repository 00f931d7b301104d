package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/members"
	"github.com/fairlead-proxy/fairlead/cmd/fairlead/needs"
	"github.com/fairlead-proxy/fairlead/registry"
)

// critical compares by Leases which of --critical-apiservices each replica reaches. A replica is not ready while
// another one reaches all that it reaches, and more (docs/decisions/0049): whoever reaches most is ready.
type critical struct {
	names  []string
	entry  func(name string) *registry.Entry // nil means that there is none
	rest   func() bool                       // says whether all other checks pass
	others *members.Members
	rounds needs.Outcome
	less   atomic.Pointer[error] // why it is to be not ready. Nil: no round has ended while the rest passed
	// Used only by round:
	read time.Time // when a round last succeeded, or else ended first
	even time.Time // when it last was no less than the others; zero means never
}

const (
	reachedAnnotation = "fairlead.dev/reached" // what the replica of a Lease reaches
	// criticalGrace is how long a replica that was ready stays so. Replicas notice one after the other that a backend
	// that hangs is dead, within 12 s, and learn it from each other within 4 s, of a replica that dies within 12 s.
	criticalGrace = 30 * time.Second
)

var errNotCompared = errors.New("it has not been compared with other replicas yet")

func (s *server) addCritical(all []needs.Check) []needs.Check {
	fails := func(n needs.Check) bool { return n.Gate != nil && n.Gate(nil) != nil }
	rest := func() bool { return !s.draining.Load() && !slices.ContainsFunc(all, fails) }
	c := &critical{names: s.o.critical, rest: rest, entry: func(name string) *registry.Entry {
		version, group, _ := strings.Cut(name, ".")
		return s.Table().Entry(schema.GroupVersion{Group: group, Version: version})
	}, others: members.New(members.Config{
		Client: s.kube.api, Label: "fairlead.dev/critical-apiservices", Identity: s.identity, Logger: s.log,
	})}
	s.loops["critical APIServices"] = func(ctx context.Context) error { return members.Run(ctx, nil, c.says, c.round) }
	return append(all, needs.Check{Name: "aggregated-apis", Gate: c.gate, Look: c.look})
}

// says returns what this replica tells the others. It is nothing while other checks fail: nobody is to give way to it.
func (c *critical) says() map[string]string {
	if !c.rest() {
		return nil
	}
	reached := c.those(func(e *registry.Entry) bool { return e != nil && e.Verdict.Available() })
	return map[string]string{reachedAnnotation: strings.Join(reached, ",")}
}

func (c *critical) those(are func(*registry.Entry) bool) []string {
	return slices.DeleteFunc(slices.Clone(c.names), func(name string) bool { return !are(c.entry(name)) })
}

func (c *critical) round(ctx context.Context, says map[string]string) error {
	others, err := c.others.Round(ctx, says)
	c.rounds.Note(err)
	now, first := time.Now(), c.less.Load() == nil
	old := !first && now.Sub(c.read) > members.LeaseDuration // the others may be different by now
	switch {
	case says == nil:
		c.read = now // it is not ready anyway, so old must not say that it was until now
	case err == nil:
		less := c.lessThan(says, others)
		if less == nil && first && says[reachedAnnotation] != strings.Join(c.names, ",") {
			less = errNotCompared // with those that start at this moment, too
		}
		if less == nil || old { // it has been ready until now
			c.even = now
		}
		if now.Sub(c.even) < criticalGrace {
			less = nil
		}
		c.read = now
		c.less.Store(&less)
	case first:
		c.read = now
		c.less.Store(&err)
	case old:
		c.less.Store(new(error))
	}
	return err
}

// lessThan returns an error if another replica reaches all that this one reaches, and more. Only our own names count:
// during a rollout others may have other ones.
func (c *critical) lessThan(says map[string]string, others []*coordinationv1.Lease) error {
	reached := func(annotations map[string]string) sets.Set[string] {
		return sets.New(c.names...).Intersection(sets.New(strings.Split(annotations[reachedAnnotation], ",")...))
	}
	own := reached(says)
	for _, l := range others {
		theirs := reached(l.Annotations)
		if more := theirs.Difference(own); more.Len() > 0 && theirs.IsSuperset(own) {
			return fmt.Errorf("it does not reach APIService %s, which the replica with Lease kube-system/%s reaches",
				strings.Join(sets.List(more), ", "), l.Name)
		}
	}
	return nil
}

func (c *critical) gate(*http.Request) error { return ptr.Deref(c.less.Load(), errNotCompared) }

// look says what is wrong beside the gate, or what to do about it.
func (c *critical) look(time.Time) answer.Check {
	if c.gate(nil) != nil {
		return answer.Check{Advice: "check this machine's routes to the pods of that APIService's Service"}
	}
	if unknown := c.those(func(e *registry.Entry) bool { return e == nil }); len(unknown) > 0 {
		return failed(errors.New(strings.Join(unknown, ", ")), "",
			"--critical-apiservices names what does not exist: ", "correct the flag, or install it")
	}
	return failed(c.rounds.Err(time.Time{}), "", "what other replicas reach is not known: ",
		"see the checks rights and local-apiserver")
}
