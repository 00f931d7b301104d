package authz

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"

	"github.com/fairlead-proxy/fairlead/internal/printable"
)

// SubjectAccessReview returns a Config.Review that asks the local apiserver with k8s.io/apiserver's client and retries.
func SubjectAccessReview(client authorizationclient.AuthorizationV1Interface) (
	review func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error),
) {
	compiler := authorizationcel.NewDefaultCompiler()
	return func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		// A client for each review: its own cache, before which ours comes, cannot be turned off. It keeps 8,192
		// questions of any size, expired or not, and a user could fill it with hundreds of megabytes.
		w, err := webhook.NewFromInterface(client, 0, 0, *webhook.DefaultRetryBackoff(), authorizer.DecisionNoOpinion,
			webhookmetrics.NoopAuthorizerMetrics{}, compiler)
		if err != nil {
			return authorizer.DecisionNoOpinion, "", fmt.Errorf("making an access reviewer: %w", err)
		}
		decision, reason, err := w.Authorize(ctx, a)
		// Callers write selectors (fieldSelector==x has an empty key). It will never be allowed. Of 8 KiB of them the
		// error has 360, and would be in each 403, audit event and cached decision.
		if apierrors.IsInvalid(err) {
			return authorizer.DecisionNoOpinion, printable.Cause(err.Error()), nil
		}
		return decision, reason, err
	}
}

// Evaluated fits rest.Config.Wrap. A SubjectAccessReview fails that the local apiserver could not decide, as with
// its webhook down: it answers with 500 then, not 403 (filters.WithAuthorization). Kubernetes' client overlooks that.
func Evaluated(next http.RoundTripper) http.RoundTripper {
	return promhttp.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		res, err := next.RoundTrip(r)
		if err != nil || !strings.HasSuffix(r.URL.Path, "subjectaccessreviews") {
			return res, err //nolint:wrapcheck // a transport passes errors on
		}
		body, err := io.ReadAll(res.Body)
		_ = res.Body.Close()
		res.Body = io.NopCloser(bytes.NewReader(body))
		var of authorizationv1.SubjectAccessReview
		_ = json.Unmarshal(body, &of) // an error's Status has none of it, nor the typed clients' protobuf
		if why := printable.Cause(of.Status.EvaluationError); err != nil || !of.Status.Allowed && why != "" {
			return nil, cmp.Or(err, errors.New("the local apiserver could not decide: "+why))
		}
		return res, nil
	})
}

// Upstream returns the Authorizer for k8s.io/apiserver's filters, with the same short-cuts and cache. Their attributes
// have parsed selectors. The cache has unparsed ones, so questions with selectors are not cached.
func (z *Authorizer) Upstream() authorizer.Authorizer {
	decide := func(ctx context.Context, attr authorizer.Attributes) (authorizer.Decision, string, error) {
		a := &Attributes{User: attr.GetUser(), RequestInfo: request.RequestInfo{
			Verb: attr.GetVerb(), IsResourceRequest: attr.IsResourceRequest(), Path: attr.GetPath(),
			APIGroup: attr.GetAPIGroup(), APIVersion: attr.GetAPIVersion(),
			Resource: attr.GetResource(), Subresource: attr.GetSubresource(),
			Namespace: attr.GetNamespace(), Name: attr.GetName(),
		}}
		fields, fieldErr := attr.GetFieldSelector()
		labels, labelErr := attr.GetLabelSelector()
		selects := a.IsResourceRequest && (len(fields) > 0 || len(labels) > 0 || fieldErr != nil || labelErr != nil)
		var d Decision
		var err error
		if selects && !z.shortcut(a) && z.cfg.Review != nil && a.size() <= maxAsked {
			d, err = z.ask(ctx, attr)
		} else {
			d, err = z.Authorize(ctx, a)
		}
		if err == nil && d.Allowed {
			return authorizer.DecisionAllow, d.Reason, nil
		}
		return authorizer.DecisionNoOpinion, d.Reason, err
	}
	return authorizer.AuthorizerFunc(decide)
}
