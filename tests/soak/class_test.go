//go:build e2e

package soak

import (
	"net/http"
	"strconv"
)

// The classes with special cases in the code.
const (
	discovery     = "discovery"
	impersonation = "impersonation"
)

type class struct {
	name string
	// weight is the percentage of requests in this class.
	weight int
	// remote requests go to a group's backend; write ones change something.
	remote, write bool
	// identity says that the answer names the caller; anonymous requests have no credentials.
	identity, anonymous bool
	// answer and send limit the sizes of payload and body.
	answer, send int
	// want is the expected status, or zero for 2xx.
	want   int
	accept string
	// read checks the body of a successful answer, unless it is nil.
	read func(*task, *exchange, []byte)
}

func classes() []class {
	const aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	return []class{
		{name: "remote read", weight: 34, remote: true, identity: true, answer: 2_000, read: readWidget},
		{name: "remote read, large", weight: 4, remote: true, identity: true, answer: 400_000, read: readWidget},
		{name: "remote write", weight: 24, remote: true, write: true, identity: true, answer: 2_000, send: 4_000, read: readWidget},
		// Beyond the 256 KiB that are kept for a retry.
		{name: "remote write, large", weight: 3, remote: true, write: true, identity: true, answer: 2_000, send: 600_000, read: readWidget},
		{name: "local read", weight: 16, read: readJSON(`"name":"` + beacon + `"`)},
		{name: "local identity", weight: 8, identity: true, read: readReview},
		{name: "local watch", weight: 2},
		{name: discovery, weight: 3, accept: aggregated, read: readJSON(`"kind":"APIGroupDiscoveryList"`)},
		{name: "anonymous", weight: 3, remote: true, anonymous: true, want: http.StatusUnauthorized},
		{name: impersonation, weight: 3, remote: true, want: http.StatusForbidden},
	}
}

// pick returns the class of a number below 100.
func pick(n int) class {
	all := classes()
	for _, c := range all {
		if n -= c.weight; n < 0 {
			return c
		}
	}
	return all[0]
}

// wire returns the request line and the body.
func (t *task) wire() (method, path string, body []byte) {
	const configMaps = "/api/v1/namespaces/" + namespace + "/configmaps"
	switch t.class.name {
	case "local read":
		return t.method, configMaps + "/" + beacon, nil
	case "local watch":
		return t.method, configMaps + "?watch=1&timeoutSeconds=2&fieldSelector=metadata.name%3D" + beacon, nil
	case "local identity":
		return http.MethodPost, "/apis/authentication.k8s.io/v1/selfsubjectreviews", []byte(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`)
	case discovery:
		return t.method, "/apis", nil
	}
	path = t.group.widgets() + "/" + t.name
	if t.method == http.MethodPost {
		path = t.group.widgets()
	}
	if t.method != http.MethodGet && t.method != http.MethodDelete {
		body = []byte(`"` + payload(t.id, t.body) + `"`)
	}
	return t.method, path + "?size=" + strconv.Itoa(t.size), body
}
