// Package tokens knows bearer tokens without a cluster: those of a token file (--token-auth-file), and JWTs of the issuers that a structured authentication
// configuration names (--authentication-config), both read and judged by k8s.io/apiserver's own code.
//
// The files belong to whoever follows them: their contents are given to TakeTokens and TakeConfig, at the start and whenever they change. What is in force is
// one immutable state behind an atomic pointer; Run owns the issuers' goroutines and replaces one state by the next.
package tokens
