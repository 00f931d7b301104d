package status

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// names returns the names of the APIServices that were written, without the first ones.
func (s *apiserver) names(from int) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.patches[from:] {
		names = append(names, p.name)
	}
	return names
}

func apiServices() schema.GroupVersionResource {
	return apiregistrationv1.SchemeGroupVersion.WithResource("apiservices")
}

// object is an APIService as a table has it.
func (s *apiserver) object(name string) *apiregistrationv1.APIService {
	o := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprintf("uid %d of %s", s.uids[name], name))}}
	if stored, err := s.tracker.Get(apiServices(), "", name); err == nil {
		o = stored.(*apiregistrationv1.APIService).DeepCopy()
	}
	return o
}

// put stores an APIService with conditions, type=status/reason.
func (s *apiserver) put(t *testing.T, name, version string, conditions []string) {
	t.Helper()
	_, err := s.tracker.Get(apiServices(), "", name)
	o := s.object(name)
	o.ResourceVersion, o.Status.Conditions = version, nil
	for _, c := range conditions {
		kind, verdict, _ := strings.Cut(c, "=")
		status, reason, _ := strings.Cut(verdict, "/")
		o.Status.Conditions = append(o.Status.Conditions, apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.APIServiceConditionType(kind), Status: apiregistrationv1.ConditionStatus(status), Reason: reason, Message: "m",
			LastTransitionTime: metav1.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC),
		})
	}
	if err != nil {
		must.Do(t, s.tracker.Add(o))
		return
	}
	must.Do(t, s.tracker.Update(apiServices(), o, ""))
}

// remove deletes an APIService. One that is made later has another UID.
func (s *apiserver) remove(t *testing.T, name string) {
	t.Helper()
	must.Do(t, s.tracker.Delete(apiServices(), "", name))
	s.uids[name]++
}

func (s *apiserver) conditions(t *testing.T, name string) (found []string) {
	t.Helper()
	must.Get(s.tracker.Get(apiServices(), "", name))(t)
	for _, c := range s.object(name).Status.Conditions {
		found = append(found, fmt.Sprintf("%s=%s/%s", c.Type, c.Status, c.Reason))
	}
	return found
}

// overwrite writes Available as another controller would.
func (s *apiserver) overwrite(t *testing.T, name, reason string) {
	t.Helper()
	s.put(t, name, strconv.FormatInt(s.revision.Add(1), 10), []string{"Available=False/" + reason})
}

// events returns the received Events in short form.
func (s *apiserver) events() []string {
	var out []string
	for _, a := range s.client.Actions() {
		if a.GetResource().Resource != "events" {
			continue
		}
		create, ok := a.(clienttesting.CreateAction)
		if !ok {
			out = append(out, a.GetVerb())
			continue
		}
		ev := create.GetObject().(*corev1.Event)
		out = append(out, fmt.Sprintf("%s %s %s in %s: %s", ev.InvolvedObject.Name, ev.Type, ev.Reason, ev.Namespace, ev.Message))
	}
	return out
}
