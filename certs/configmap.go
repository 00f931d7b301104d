package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// RequestHeaders are the header names in the cluster's authentication ConfigMap, which extension
// servers trust.
type RequestHeaders struct {
	// Username, UID and Group are header names in order of preference. Nil means that the ConfigMap
	// has none.
	Username, UID, Group []string
	// ExtraPrefix are prefixes of header names.
	ExtraPrefix []string
	// AllowedNames are the common names that may send them. Empty means any that the CA signed.
	AllowedNames []string
}

// takeConfigMap takes the cluster's authentication ConfigMap: its header names always, its CAs only
// if trusted, and where no file gives one. Deleting the ConfigMap, or removing a CA from it, ends
// that trust (kubernetes/kubernetes#140130 is about a server that went on).
func (c *Clients) takeConfigMap(trusted bool) func(map[string][]byte, error) error {
	return func(data map[string][]byte, err error) error {
		var h RequestHeaders
		if err == nil { // it exists
			if h, err = parseHeaders(data); err != nil {
				return err
			}
			// The pointer changes only with the names: caches of identities use it as a key.
			if old := c.headers.Load(); old == nil || !reflect.DeepEqual(*old, h) {
				c.headers.Store(&h)
			}
		}
		c.known.Store(true)
		if !trusted {
			return nil
		}
		client, err := optionalBundle(data["client-ca-file"])
		if err != nil {
			return fmt.Errorf("parsing client-ca-file: %w", err)
		}
		proxy, err := optionalBundle(data["requestheader-client-ca-file"])
		if err != nil {
			return fmt.Errorf("parsing requestheader-client-ca-file: %w", err)
		}
		return c.update(func(t *clientTrust) {
			if !c.files.client {
				t.client = client
			}
			if !c.files.proxy {
				t.proxy, t.allowed = proxy, h.AllowedNames
			}
		})
	}
}

func optionalBundle(data []byte) ([]*x509.Certificate, error) {
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, nil
	}
	return bundle.Parse(data)
}

func parseHeaders(data map[string][]byte) (RequestHeaders, error) {
	var h RequestHeaders
	for key, to := range map[string]*[]string{
		"requestheader-username-headers":     &h.Username,
		"requestheader-uid-headers":          &h.UID,
		"requestheader-group-headers":        &h.Group,
		"requestheader-extra-headers-prefix": &h.ExtraPrefix,
		"requestheader-allowed-names":        &h.AllowedNames,
	} {
		if len(data[key]) == 0 {
			continue
		}
		if err := json.Unmarshal(data[key], to); err != nil {
			return RequestHeaders{}, fmt.Errorf("parsing %s: %w", key, err)
		}
	}
	return h, nil
}
