package authz

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	webhookmetrics "k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// SubjectAccessReview returns a Config.Review that asks the local apiserver with k8s.io/apiserver's client and retries.
func SubjectAccessReview(client authorizationv1.AuthorizationV1Interface) (
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
		// Callers write selectors (fieldSelector==x has an empty key). It will never be allowed.
		if apierrors.IsInvalid(err) {
			return authorizer.DecisionNoOpinion, err.Error(), nil
		}
		return decision, reason, err
	}
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
		if selects && !z.shortcut(a) && z.cfg.Review != nil {
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
