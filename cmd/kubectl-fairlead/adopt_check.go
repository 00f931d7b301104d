package main

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

// runs returns an error if Fairlead's Service has nobody behind it.
func (m *mover) runs(ctx context.Context) error {
	list := &discoveryv1.EndpointSliceList{}
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=" + m.own.Name}}
	if err := m.get(ctx, "/apis/discovery.k8s.io/v1/namespaces/"+m.own.Namespace+"/endpointslices", query, list); err != nil {
		return err
	}
	for _, s := range list.Items {
		if slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }) {
			return nil
		}
	}
	return fmt.Errorf("the Service %s has no ready endpoint: no Fairlead runs there", behind.Format(m.own))
}

// ownCA returns the CA that verifies Fairlead.
func (m *mover) ownCA(ctx context.Context) (pem []byte, err error) {
	if secret := (&corev1.Secret{}); m.caFile != "" {
		pem, err = os.ReadFile(m.caFile)
	} else if err = m.get(ctx, "/api/v1/namespaces/"+m.own.Namespace+"/secrets/fairlead-serving", nil, secret); err == nil {
		pem = secret.Data[corev1.ServiceAccountRootCAKey]
	}
	if _, bad := bundle.Parse(pem); err != nil || bad != nil {
		return nil, fmt.Errorf("reading the CA of Fairlead (see --ca-file): %w", cmp.Or(err, bad))
	}
	return pem, nil
}
