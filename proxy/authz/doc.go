// Package authz authorizes users by SubjectAccessReviews of the local apiserver, with a cache.
//
// Cached reads the cache without allocating; on a miss Authorize asks, once for all concurrent
// equal questions. Two short-cuts of upstream come first: system:masters may do everything, and
// some paths are open to all. If a review fails, the request is refused.
//
// Impersonate runs k8s.io/apiserver's own impersonation filter, including constrained
// impersonation, for requests that Fairlead itself authorizes.
//
// The concurrency rule: an Authorizer is safe for concurrent use, and no lock is held during I/O.
// The only goroutines are SubjectAccessReviews, each ended by its timeout.
//
// This package does not authenticate (proxy/authn does), does not choose which requests are
// authorized here rather than by the local apiserver, and writes only the impersonation filter's
// responses.
package authz
