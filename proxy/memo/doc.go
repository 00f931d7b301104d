// Package memo remembers answers for some time, in a cache that is bounded in entries and in bytes.
//
// Looking up takes no lock and allocates nothing. Writers, of which there are as many as answers from elsewhere, take one mutex and hold
// it for a few sets of eight entries.
//
// It neither hashes nor compares keys: the caller does, because a key that passes through a func field would be allocated per request.
package memo
