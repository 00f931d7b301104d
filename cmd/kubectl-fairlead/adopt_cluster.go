package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"github.com/fairlead-proxy/fairlead/registry/behind"
	"github.com/fairlead-proxy/fairlead/registry/bundle"
)

func annotations() []string { return []string{behind.Service, behind.Bundle, behind.Insecure} }

// errChanged means that another hand was faster: its change is kept.
var errChanged = errors.New("somebody else has changed it meanwhile: look at it, and run the command again")

// save writes what this command changes of an APIService, unless it is so already, if that is still as it was, or as in
// made, which is then undone. It leaves what others have written beside that, and when it undoes, a bundle, too, as of
// cert-manager's cainjector: it is the extension server's, whom the cluster is to ask again, or what a says itself.
func (m *mover) save(ctx context.Context, a, was, made *apiregistrationv1.APIService) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		now, to, undone := &apiregistrationv1.APIService{}, a, made
		if err := m.get(ctx, pathTo(a.Name), nil, now); err != nil {
			return err
		}
		is, fits := now.Spec.CABundle, behind.Format(a.Spec.Service) != behind.Format(m.own)
		if made != nil && !bytes.Equal(is, made.Spec.CABundle) && (fits || bytes.Equal(is, a.Spec.CABundle)) {
			to, undone = a.DeepCopy(), made.DeepCopy()
			if undone.Spec.CABundle = is; len(a.Spec.CABundle) > 0 { // none goes with insecureSkipTLSVerify
				to.Spec.CABundle = is
			}
		}
		expected := func(b *apiregistrationv1.APIService) bool { return b != nil && same(now, b) }
		switch {
		case m.dryRun: // the server checks each write, and the one before was not made
		case expected(to):
			return nil // as the undoing of a write that the server has refused, for which the right may be missing
		case !expected(was) && !expected(undone):
			return errChanged
		}
		patch := ours(to)
		patch["metadata"].(map[string]any)["resourceVersion"] = now.ResourceVersion //nolint:forcetypeassert // by ours
		body, _ := json.Marshal(patch)                                              // it encodes such values always
		r := m.apiserver.Patch(types.MergePatchType).AbsPath(pathTo(a.Name)).Body(body).
			Param("fieldManager", "kubectl-fairlead")
		if m.dryRun {
			r.Param("dryRun", metav1.DryRunAll)
		}
		return r.Do(ctx).Error()
	})
}

func same(a, b *apiregistrationv1.APIService) bool {
	return equality.Semantic.DeepEqual(ours(a), ours(b))
}

// ours returns what this command changes of an APIService, as a merge patch.
func ours(a *apiregistrationv1.APIService) map[string]any {
	values := map[string]any{} // null removes one
	for _, name := range annotations() {
		if values[name] = nil; metav1.HasAnnotation(a.ObjectMeta, name) {
			values[name] = a.Annotations[name]
		}
	}
	return map[string]any{
		"metadata": map[string]any{"uid": a.UID, "annotations": values},
		"spec": map[string]any{
			"service": a.Spec.Service, "caBundle": a.Spec.CABundle,
			"insecureSkipTLSVerify": a.Spec.InsecureSkipTLSVerify,
		},
	}
}

func (m *mover) runs(ctx context.Context) error {
	list := &discoveryv1.EndpointSliceList{}
	query := url.Values{"labelSelector": {discoveryv1.LabelServiceName + "=" + m.own.Name}}
	path := "/apis/discovery.k8s.io/v1/namespaces/" + m.own.Namespace + "/endpointslices"
	if err := m.get(ctx, path, query, list); err != nil {
		return err
	}
	ready := func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) }
	serves := func(s discoveryv1.EndpointSlice) bool { return slices.ContainsFunc(s.Endpoints, ready) }
	if slices.ContainsFunc(list.Items, serves) {
		return nil
	}
	return fmt.Errorf("the Service %s has no ready endpoint: no Fairlead runs there", behind.Format(m.own))
}

func (m *mover) ownCA(ctx context.Context) (pem []byte, err error) {
	if s := (&corev1.Secret{}); m.caFile != "" {
		pem, err = os.ReadFile(m.caFile)
	} else if err = m.get(ctx, "/api/v1/namespaces/"+m.own.Namespace+"/secrets/fairlead-serving", nil, s); err == nil {
		pem = s.Data[corev1.ServiceAccountRootCAKey]
	}
	if _, bad := bundle.Parse(pem); err != nil || bad != nil {
		return nil, fmt.Errorf("reading the CA of Fairlead (see --ca-file): %w", cmp.Or(err, bad))
	}
	return pem, nil
}
