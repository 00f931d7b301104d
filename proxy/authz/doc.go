// Package authz says whether a user may: SubjectAccessReview, asked of the local apiserver and cached.
//
// Cached answers from memory without allocating; Authorize asks on a miss, once for all who ask the same at the same time. Before either is asked come
// upstream's two short-cuts: system:masters may do everything, and some paths are open to all. Whatever cannot be asked is refused.
//
// Impersonate runs k8s.io/apiserver's own impersonation filter, constrained impersonation included, for what Fairlead authorizes itself.
//
// The concurrency rule: an Authorizer is safe for concurrent use and no lock is held over I/O. The only goroutines are SubjectAccessReviews, each ended
// by its timeout.
//
// What this package is not: it does not know who is asking (proxy/authn), nor which requests are authorized here rather than by the local apiserver, and
// writes no response but those of the impersonation filter.
package authz
