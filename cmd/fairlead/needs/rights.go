package needs

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/rights"
	"github.com/fairlead-proxy/fairlead/internal/latest"
)

const (
	// rightsEvery is how often the rights are asked for, a fifth later at random, so that replicas
	// do not ask together: a change is seen within a minute, and a replica asks a dozen questions.
	rightsEvery = 50 * time.Second
	rightsAgain = 10 * time.Second // while one is missing, so that its return is seen soon
)

// Rights asks the local apiserver whether this process has the rights that it needs.
type Rights struct {
	client authorizationv1client.AuthorizationV1Interface
	needed func() []rights.Right
	last   atomic.Pointer[asked]
}

type asked struct {
	missing []rights.Right
	narrow  []rights.Right // that are missing for all names
	err     error          // of a question; missing is incomplete then
	passed  time.Time
}

// NewRights makes Rights. They are asked for by Run.
func NewRights(client authorizationv1client.AuthorizationV1Interface, needed func() []rights.Right) *Rights {
	r := &Rights{client: client, needed: needed}
	r.last.Store(&asked{err: errors.New("not asked yet")})
	return r
}

// Run asks until ctx ends.
func (r *Rights) Run(ctx context.Context) error {
	for pause := time.Duration(0); latest.Sleep(ctx, pause); {
		a := r.ask(ctx)
		if ctx.Err() != nil {
			break
		}
		pause = rightsAgain
		if len(a.missing) == 0 && a.err == nil {
			a.passed = time.Now()
			pause = rightsEvery + rand.N(rightsEvery/5) //nolint:gosec // no secret
		}
		r.last.Store(a)
	}
	return ctx.Err()
}

func (r *Rights) ask(ctx context.Context) *asked {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second) // for all questions of one time
	defer cancel()
	a := &asked{}
	for _, right := range r.needed() {
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.Spec.ResourceAttributes = right.Attributes()
		done, err := r.client.SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			a.err = fmt.Errorf("asking the local apiserver: %w", err)
			return a
		}
		switch {
		case done.Status.Allowed:
		case done.Status.EvaluationError != "": // as authz.Evaluated, to which protobuf says nothing
			a.err = fmt.Errorf("the local apiserver could not decide: %.200q", done.Status.EvaluationError)
		case right.Narrow:
			a.narrow = append(a.narrow, right)
		default:
			a.missing = append(a.missing, right)
		}
	}
	if len(a.narrow) > 0 {
		review := &authorizationv1.SelfSubjectRulesReview{}
		review.Spec.Namespace = metav1.NamespaceSystem
		done, err := r.client.SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			a.err = fmt.Errorf("asking the local apiserver for its rules: %w", err)
			return a
		}
		a.missing = append(a.missing, rights.Ungranted(a.narrow, done.Status.ResourceRules)...)
	}
	// Those that users notice first.
	slices.SortStableFunc(a.missing, func(x, y rights.Right) int { return strings.Compare(y.Users(), x.Users()) })
	return a
}

// Of returns a check of the rights to the object with a name. Empty means all rights.
func (r *Rights) Of(name string) answer.Check {
	a := r.last.Load()
	other := func(m rights.Right) bool { return name != "" && m.Name != name }
	missing := slices.DeleteFunc(slices.Clone(a.missing), other)
	switch {
	case len(missing) > 0:
	case a.err != nil:
		return answer.Check{Status: Unknown, Message: a.err.Error()}
	case len(a.narrow) > 0 && name == "":
		m := a.narrow[0]
		return answer.Check{Message: "may not " + m.String() + " of every name (" + m.Manifest + "), " +
			"which is right if only some are granted"}
	default:
		return answer.Check{}
	}
	first := missing[0]
	do := "bind " + first.Role + " to Fairlead's account"
	if file, _, ships := strings.Cut(first.Manifest, ":"); ships {
		do = "apply your kustomization with " + file + " again, and " + do
	}
	c := answer.Check{Status: Failed, Users: first.Users(), Advice: "without it " + first.For + ": " + do}
	const shown = 3 // so that a line can be read
	var named []string
	for _, m := range missing[:min(shown, len(missing))] {
		named = append(named, m.String()+" ("+m.Manifest+")")
	}
	c.Message = "Fairlead may not " + strings.Join(named, "; ")
	if more := len(missing) - shown; more > 0 {
		c.Message += fmt.Sprintf(" and %d more", more)
	}
	c.Command = "kubectl describe " + strings.ToLower(first.Role) // no name of a role has upper case
	if !strings.HasPrefix(first.Role, "Cluster") {
		c.Command += " -n " + first.Namespace
	}
	return c
}

// Passed returns when the last question of all was answered, and every one with yes. Zero means that they were not.
func (r *Rights) Passed() time.Time { return r.last.Load().passed }

// Credential returns whether the local apiserver accepts this process's own credential.
func (r *Rights) Credential() answer.Check {
	switch err := r.last.Load().err; {
	case apierrors.IsUnauthorized(err):
		return answer.Check{
			Status: Failed, Message: "the local apiserver rejects Fairlead's own credential (401)",
			Users: "Users without system:masters get 503 for what is not in the caches",
			Advice: "renew the certificate or the token of the kubeconfig: its file is followed; " +
				"without one, restart the pod if its ServiceAccount was made anew",
		}
	case err != nil && !apierrors.IsForbidden(err):
		return answer.Check{Status: Unknown}
	}
	return answer.Check{}
}
