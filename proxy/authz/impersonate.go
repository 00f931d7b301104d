package authz

import (
	"context"
	"net/http"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// requestorKey is the context key of who sent a request, before impersonation.
type requestorKey struct{}

// Impersonate wraps a handler in k8s.io/apiserver's impersonation filter: a request with Impersonate-* fields goes on as the user it names if its sender
// may (legacy and constrained impersonation alike), without those fields, and is answered with 400, 403 or 500 in the client's negotiated form if not.
// The context must carry the sender (request.WithUser) and what is asked for (request.WithRequestInfo); the handler finds the user to serve there.
// Serializer writes the errors.
func (z *Authorizer) Impersonate(next http.Handler, serializer runtime.NegotiatedSerializer) http.Handler {
	filter := impersonation.WithConstrainedImpersonation(next, z.Upstream(), serializer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := audit.WithAuditContext(r.Context())
		// The filter's own test: with a name it impersonates or answers itself, without one it does neither.
		if u, ok := request.UserFrom(ctx); ok && r.Header.Get(authenticationv1.ImpersonateUserHeader) != "" {
			ctx = context.WithValue(ctx, requestorKey{}, u)
		}
		filter.ServeHTTP(w, r.WithContext(ctx))
	})
}

// Impersonator returns who really sent a request that goes on as somebody else, nil when nobody was impersonated. It works below Impersonate.
func Impersonator(ctx context.Context) user.Info {
	sender, _ := ctx.Value(requestorKey{}).(user.Info)
	return sender
}
