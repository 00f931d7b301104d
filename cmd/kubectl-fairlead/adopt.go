package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/util/retry"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/cmd/cli"
	"github.com/fairlead-proxy/fairlead/internal/latest"
	"github.com/fairlead-proxy/fairlead/registry/behind"
)

// mover moves APIServices behind Fairlead, and back. An APIService is moved by two writes, and
// whatever is between them works: its annotations say where the extension server is (Fairlead then
// knows it, and the cluster does not care), and its spec says whom the cluster asks.
type mover struct {
	*client
	own      *apiregistrationv1.ServiceReference // Fairlead's Service
	caFile   string
	dryRun   bool
	patience time.Duration
}

// steady successes, one each poll, count as available: 5 s. The cluster looks at once when an APIService has changed,
// but until then it answers by its condition of before (kube-aggregator, remote_available_controller.go).
const steady, poll = 20, time.Second / 4

// change changes an APIService as it is to be after both writes.
type change func(m *mover, ctx context.Context, a *apiregistrationv1.APIService) error

func moveCommand(use, short string, change change) *cobra.Command {
	flags, m, own := genericclioptions.NewConfigFlags(true), &mover{}, ""
	cmd := &cobra.Command{
		Use: use + " NAME…", Short: short, Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, names []string) (err error) {
			if m.own, err = behind.Parse(own); err != nil {
				return cli.Usage(fmt.Errorf("--service: %w", err))
			}
			if m.client, err = connect(flags, cmd.OutOrStdout()); err != nil {
				return err
			}
			for _, name := range names {
				if err := m.move(cmd.Context(), name, change); err != nil {
					return fmt.Errorf("APIService %s: %w", name, err)
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&own, "service", "kube-system/fairlead:443", "Fairlead's Service, NAMESPACE/NAME:PORT.")
	cmd.Flags().StringVar(&m.caFile, "ca-file", "", "CA bundle that verifies Fairlead's serving certificate for "+
		"<service>.<namespace>.svc. Empty: ca.crt of the Secret fairlead-serving beside the Service.")
	cmd.Flags().BoolVar(&m.dryRun, "dry-run", false, "Show the change, and let the server check it, but make none.")
	cmd.Flags().DurationVar(&m.patience, "wait", time.Minute, "How long to wait until the APIService has been "+
		"available for 5 s. 0: not at all, and nothing is undone for that.")
	groupFlags(cmd, flags)
	return cmd
}

func (m *mover) adopt(ctx context.Context, a *apiregistrationv1.APIService) (err error) {
	at := behind.Format(a.Spec.Service)
	switch _, known := a.Annotations[behind.Service]; {
	case a.Spec.Service == nil:
		return errors.New("it is Local, or names no Service")
	case at == behind.Format(m.own) && known:
		a.Spec.CABundle, err = m.ownCA(ctx) // another one, if Fairlead's has been rotated
		return err
	case at == behind.Format(m.own):
		return fmt.Errorf("it already names Fairlead's Service, "+
			"and nothing says where its extension server is: annotation %s is missing", behind.Service)
	}
	if _, err = behind.Parse(at); err == nil {
		err = m.runs(ctx)
	}
	if err != nil {
		return err
	}
	// All three: the annotations may be of before, if a chart has set the spec back.
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, behind.Service, at)
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, behind.Bundle, string(a.Spec.CABundle))
	metav1.SetMetaDataAnnotation(&a.ObjectMeta, behind.Insecure, fmt.Sprint(a.Spec.InsecureSkipTLSVerify))
	a.Spec.Service, a.Spec.InsecureSkipTLSVerify = m.own, false
	a.Spec.CABundle, err = m.ownCA(ctx)
	return err
}

func (m *mover) release(_ context.Context, a *apiregistrationv1.APIService) (err error) {
	// Otherwise another hand has set the spec back, as an update of its chart does.
	if at := a.Annotations[behind.Service]; behind.Format(a.Spec.Service) == behind.Format(m.own) {
		if a.Spec.Service, err = behind.Parse(at); at == behind.Format(m.own) {
			err = errors.New("it names Fairlead's own Service")
		}
		if err != nil {
			return fmt.Errorf("annotation %s: %w", behind.Service, err)
		}
		a.Spec.CABundle = []byte(a.Annotations[behind.Bundle])
		a.Spec.InsecureSkipTLSVerify = a.Annotations[behind.Insecure] == "true" && len(a.Spec.CABundle) == 0 // as serve
	}
	for _, name := range annotations() {
		delete(a.Annotations, name)
	}
	return nil
}

// move shows and makes the two writes, of which one changes the spec, and undoes them if the cluster does not find the
// APIService available then. While the spec names Fairlead, the annotations are there.
func (m *mover) move(ctx context.Context, name string, change change) error {
	if _, other := m.status(ctx); other == nil && m.patience > 0 && !m.dryRun {
		return errors.New("this server is Fairlead, not the cluster's aggregator: give kube-apiserver's --context")
	}
	from := &apiregistrationv1.APIService{}
	if err := m.get(ctx, pathTo(name), nil, from); err != nil {
		return err
	}
	at, own := behind.Format(from.Spec.Service), behind.Format(m.own)
	if real, known := from.Annotations[behind.Service]; known && at != real && at != own {
		return fmt.Errorf("the cluster asks %s, which is neither %s (--service) nor %s of annotation %s: "+
			"correct --service, or remove the annotation if it is out of date", at, own, real, behind.Service)
	}
	between, to := from.DeepCopy(), from.DeepCopy()
	if err := change(m, ctx, to); err != nil {
		return err
	}
	if between.Spec = to.Spec; metav1.HasAnnotation(to.ObjectMeta, behind.Service) {
		between.Spec, between.Annotations = from.Spec, to.Annotations
	}
	differ(m.out, yamlOf(from), yamlOf(to))
	before, did := from, "unchanged: the cluster asks"
	for _, next := range []*apiregistrationv1.APIService{between, to} {
		if same(before, next) {
			continue
		}
		moves := behind.Format(before.Spec.Service) != behind.Format(next.Spec.Service) ||
			string(before.Spec.CABundle) != string(next.Spec.CABundle)
		err := m.save(ctx, next, before, nil)
		if errors.Is(err, errChanged) {
			return err
		}
		was := before
		switch before, did = next, "changed: the cluster asks"; {
		case m.dryRun:
			did = "would be changed (dry run): the cluster would ask"
		case err == nil && moves && m.patience > 0:
			err = m.settled(ctx, next)
		case err == nil && !moves:
			latest.Sleep(ctx, time.Second) // until Fairlead has noted it: its watch and its table take a tenth of that
		}
		if err != nil && moves && !m.dryRun { // the server may have made a write that has failed here
			restart := wait.Backoff{Duration: poll, Steps: 240} // a minute, in which kube-apiserver is back
			undo := func() error { return m.save(context.WithoutCancel(ctx), from, was, next) }
			again := func(err error) bool { return !errors.Is(err, errChanged) }
			if worse := retry.OnError(restart, again, undo); worse != nil {
				return fmt.Errorf("%w; undoing the change failed, too: %w", err, worse)
			}
			return fmt.Errorf("%w; the change was undone", err)
		}
		if err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(m.out, "apiservice/%s %s %s\n", name, did, behind.Format(before.Spec.Service))
	return err
}

// settled waits until the cluster has answered for an APIService for a while, which it does only
// while its own condition is True (kube-aggregator, handler_proxy.go).
func (m *mover) settled(ctx context.Context, a *apiregistrationv1.APIService) (why error) {
	path, good := (&answer.APIService{Group: a.Spec.Group, Version: a.Spec.Version}).Path(), 0
	late := wait.PollUntilContextTimeout(ctx, poll, m.patience, true, func(ctx context.Context) (bool, error) {
		now := &apiregistrationv1.APIService{}
		if err := m.get(ctx, pathTo(a.Name), nil, now); err == nil && !same(now, a) {
			return false, errChanged // the sooner it is undone, the better
		}
		if why = m.apiserver.Get().AbsPath(path).MaxRetries(0).Do(ctx).Error(); why != nil { // no failure is hidden
			good = -1
		}
		good++
		return good >= steady, nil
	})
	if late == nil || errors.Is(late, errChanged) {
		return late
	}
	now := &apiregistrationv1.APIService{}
	_ = m.get(ctx, pathTo(a.Name), nil, now) // it knows more
	c := helper.GetAPIServiceConditionByType(now, apiregistrationv1.Available)
	if c != nil && c.Status != apiregistrationv1.ConditionTrue {
		why = errors.New(c.Reason + ": " + c.Message)
	}
	return fmt.Errorf("waiting for it to be available: %w", cmp.Or(why, late))
}

func pathTo(name string) string {
	return "/apis/apiregistration.k8s.io/v1/apiservices/" + url.PathEscape(name)
}

func yamlOf(a *apiregistrationv1.APIService) string {
	text, _ := yaml.Marshal(map[string]any{"annotations": a.Annotations, "spec": a.Spec}) // it came as JSON
	return string(text)
}
