// Package authn says who is asking, and which identity goes to which side.
//
// Read looks at what a request's head presented and verifies what this process can verify alone: the peer's certificate against the request-header
// CA and the client CA, once per connection and CA generation. It does no I/O. Only a bearer token may need more: Cached looks it up, Review asks the
// local apiserver (TokenReview). The order is that of kube-apiserver's union: request headers, certificate, token; all are tried, the first success
// wins, a request is refused only if one failed and none succeeded, and it is anonymous only if none was presented. A differential test holds it to
// k8s.io/apiserver's own authenticators.
//
// Strip and Headers are the two halves of what leaves: what a client may not say to a backend, and what we say of it. A caller strips before it
// sets, and drops what a Connection header lists before it sets, or a client could list our own header there and have it dropped.
//
// The concurrency rule: an Authenticator and a Conn are safe for concurrent use; no lock is held over I/O; every user.Info that is handed out is
// read-only. The only goroutines are TokenReviews, each ended by its timeout.
//
// What this package is not: it knows no CA (VerifyClient and VerifyFrontProxy do), dials nothing (Config.Review does), decides nothing about what a user
// may do (proxy/authz) and writes no response.
package authn
