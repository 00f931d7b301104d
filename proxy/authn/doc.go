// Package authn authenticates callers, and decides which identity is sent to which side.
//
// Read parses the credentials of a request's head. It uses what this process can verify alone: the
// peer's certificate against the request-header CA and the client CA, once per connection and CA
// generation. It does no I/O. Only a bearer token may need I/O: Cached looks it up, Review asks the
// local apiserver (TokenReview). The order is that of kube-apiserver's union: request headers,
// certificate, token. All are tried and the first success wins. A request is refused only if one
// failed and none succeeded, and is anonymous only if it has no credentials. A differential test
// compares it with k8s.io/apiserver's own authenticators.
//
// Strip removes identity and secrets from a forwarded request; Headers or Impersonation add the
// identity that Fairlead asserts. The caller must strip, and drop the fields that a Connection
// header lists, before it adds: otherwise a client could list our own header there to have it
// dropped.
//
// The concurrency rule: an Authenticator and a Conn are safe for concurrent use; no lock is held
// during I/O; every returned user.Info is read-only. The only goroutines are TokenReviews, each
// ended by its timeout.
//
// This package has no CA (VerifyClient and VerifyFrontProxy do), dials nothing (Config.Review
// does), does not authorize (proxy/authz does) and writes no responses.
package authn
