package proxy

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"

	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	protocols "k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// asked is what an apiserver makes of a request that it gets, by its own code: who asks for what.
type asked struct {
	*request.RequestInfo
	user  user.Info
	asker user.Info // the same without impersonation
	whole bool      // a list of all objects
	agent string
}

// apiserver is kube-apiserver's authentication, impersonation and parsing. Whoever asks may
// impersonate: what an apiserver would refuse is not missed.
type apiserver struct {
	authn  authenticator.Request
	filter []func(http.Handler) http.Handler
}

func newAPIServer() *apiserver {
	tokens := authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		name, ok := strings.CutPrefix(token, "token-of-")
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{"people"}}}, ok, nil
	})
	asserted := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if len(r.TLS.PeerCertificates) == 0 || r.Header.Get("X-Remote-User") == "" {
			return nil, false, nil
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: r.Header.Get("X-Remote-User"), Groups: r.Header["X-Remote-Group"]}}, true, nil
	})
	s := &apiserver{authn: union.NewFailOnError(
		group.NewAuthenticatedGroupAdder(union.New(asserted, bearertoken.New(tokens), protocols.NewProtocolAuthenticator(tokens))), anonymous.NewAuthenticator(nil),
	)}
	everybody := authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})
	codecs := metainternalversionscheme.Codecs
	s.filter = append(s.filter, func(h http.Handler) http.Handler { return impersonation.WithImpersonation(h, everybody, codecs) })
	s.filter = append(s.filter, func(h http.Handler) http.Handler {
		return impersonation.WithConstrainedImpersonation(h, everybody, codecs)
	})
	return s
}

// asked returns what a request is, for the impersonation of older apiservers and for that of newer
// ones. None: it is refused.
func (s *apiserver) asked(r *http.Request) (all []asked) {
	info, err := (&request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}).NewRequestInfo(r)
	if err != nil {
		return nil
	}
	a := asked{RequestInfo: info, agent: r.UserAgent()}
	var o metainternalversion.ListOptions
	err = metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &o)
	a.whole = info.Verb == "list" && (info.Name == "" || info.Namespace == "" || o.Continue != "") && err == nil && (o.ResourceVersion == "" || o.Continue != "" || o.ResourceVersionMatch == metav1.ResourceVersionMatchExact) && o.Limit <= 0
	for _, filter := range s.filter {
		r := r.Clone(r.Context())
		res, ok, err := s.authn.AuthenticateRequest(r)
		if !ok || err != nil {
			return nil
		}
		ctx := request.WithUser(request.WithRequestInfo(r.Context(), info), res.User)
		filter(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			a.user, _ = request.UserFrom(r.Context())
			a.asker = res.User
			all = append(all, a)
		})).ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
	}
	return all
}
