package answer

// Explanation says what becomes of a request: the answer to /explain.
type Explanation struct {
	// Method, Path and Verb are the request's; Verb is Kubernetes' for a resource, the method for anything else.
	Method string `json:"method"`
	Path   string `json:"path"`
	Verb   string `json:"verb"`
	// Destination is local, remote, document, page, health, or refused.
	Destination string `json:"destination"`
	// Why is how the path came to lead there, one step each.
	Why []string `json:"why"`
	// APIService is the entry that claims the path. Nil: none does.
	APIService *APIService `json:"apiService,omitempty"`
	// Identity is what the destination is told of the caller. Nil: it is told nothing by us.
	Identity *Identity `json:"identity,omitempty"`
	// Timeout is the class of the deadline and its length.
	Timeout string `json:"timeout,omitempty"`
	// Code and Message are those of the answer when the request is refused here. Zero: it is not.
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Cause says in one sentence why it is refused, or what is wrong although it is not. Empty: all is well.
	Cause string `json:"cause,omitempty"`
	// Advice is what to look at. Empty: nothing.
	Advice string `json:"advice,omitempty"`
}

// Identity is a user as a destination sees it.
type Identity struct {
	// User, UID, Groups and Extra are the caller's.
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
	// Headers are the fields that are added, as name: value. Empty: none.
	Headers []string `json:"headers,omitempty"`
	// How is the way in which it arrives.
	How string `json:"how"`
}
