package authz

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// requestorKey is the context key of a request's sender before impersonation.
type requestorKey struct{}

// Impersonate wraps a handler in k8s.io/apiserver's impersonation filter. A request with
// Impersonate-* fields continues as the user that it names, without those fields, if its sender may
// impersonate that user (by legacy or constrained impersonation). If not, it is answered with 400,
// 403 or 500 in a form that the client accepts. The context must carry the sender
// (request.WithUser) and the request's attributes (request.WithRequestInfo); for the handler, it
// carries the effective user. serializer encodes the errors. undecided makes the answer of the
// error of a failed review: a StatusError of reason Forbidden, with any code.
func (z *Authorizer) Impersonate(next http.Handler, serializer runtime.NegotiatedSerializer, undecided func(error) error) http.Handler {
	authorize := z.Upstream().Authorize
	may := func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		decision, reason, err := authorize(ctx, a)
		if err != nil {
			err = undecided(err)
		}
		return decision, reason, err
	}
	filter := impersonation.WithConstrainedImpersonation(next, authorizer.AuthorizerFunc(may), serializer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := audit.WithAuditContext(r.Context())
		// The filter's own test: with a name it impersonates or answers, without one it does
		// neither.
		if u, ok := request.UserFrom(ctx); ok && r.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			ctx = context.WithValue(ctx, requestorKey{}, u)
		}
		filter.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Impersonator returns the sender of a request that runs as another user, or nil. It works behind
// Impersonate.
func Impersonator(ctx context.Context) user.Info {
	sender, _ := ctx.Value(requestorKey{}).(user.Info)
	return sender
}
