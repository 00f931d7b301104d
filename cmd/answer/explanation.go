package answer

// Explanation is what happens to a request: the response to /explain.
type Explanation struct {
	// Method, Path and Verb are the request's. Verb is the method unless it is for a resource.
	Method string `json:"method"`
	Path   string `json:"path"`
	Verb   string `json:"verb"`
	// Destination is local, remote, document, page, health, or refused.
	Destination string `json:"destination"`
	// Why explains how the path leads to the destination, one step each.
	Why []string `json:"why"`
	// APIService is the entry that claims the path. Nil means none does.
	APIService *APIService `json:"apiService,omitempty"`
	// Authorization is allowed, or denied with the reason. Empty means that Fairlead does not check
	// it.
	Authorization string `json:"authorization,omitempty"`
	// Identity is what Fairlead asserts to the destination. Nil means nothing.
	Identity *Identity `json:"identity,omitempty"`
	// Timeout is the class of the deadline and its length.
	Timeout string `json:"timeout,omitempty"`
	// Code and Message are those of the response if the request is refused here. Zero means that it
	// is not.
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
	// Cause says why it is refused, or what is wrong although it is not. Empty means all is well.
	Cause string `json:"cause,omitempty"`
	// Advice is what to check. Empty means nothing.
	Advice string `json:"advice,omitempty"`
}

// Outcome returns Destination in words.
func (x *Explanation) Outcome() string {
	switch {
	case x.Destination == "local":
		return "forwarded to the local apiserver"
	case x.Destination == "remote" && x.APIService != nil:
		return "forwarded to " + x.APIService.Service
	case x.Destination == "document" || x.Destination == "page" || x.Destination == "health":
		return "answered by Fairlead"
	}
	return x.Destination
}

// Identity is a user as the destination sees it.
type Identity struct {
	// User, UID, Groups and Extra are the caller's.
	User   string              `json:"user"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
	// Headers are the added header fields, as name: value.
	Headers []string `json:"headers,omitempty"`
	// How describes the way in which the identity is passed.
	How string `json:"how"`
}
