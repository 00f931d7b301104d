package etcd

import (
	"bytes"
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/etcd3/testserver"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/install"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/fairlead-proxy/fairlead/tests/kit/must"
)

// open runs a store with c until the test ends, and checks that its cache ends with it.
func open(t *testing.T, c Config) *Store {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	s := must.Get(New(scheme, c))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := s.cached.Wait(ctx); err == nil || ctx.Err() != nil {
			t.Errorf("the cache has not ended with Run: %v", err)
		}
	})
	must.Run(t, s.Run)
	return s
}

func asked(t *testing.T) context.Context {
	t.Helper()
	return request.WithRequestInfo(request.WithNamespace(t.Context(), ""), &request.RequestInfo{})
}

func create(t *testing.T, s *Store, name string) error {
	t.Helper()
	to := s.Storage()["apiservices"].(rest.Creater) //nolint:forcetypeassert,misspell // it is one, as it is called there
	_, err := to.Create(asked(t), &apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       apiregistration.APIServiceSpec{Version: "v1", Group: name[3:], GroupPriorityMinimum: 100, VersionPriority: 10},
	}, rest.ValidateAllObjectFunc, &metav1.CreateOptions{})
	return err
}

// Keys and values are kube-apiserver's. Protobuf, which it never writes here, can be read, too.
func TestKeysAndValues(t *testing.T) {
	kv := testserver.RunEtcd(t, nil)
	s := open(t, Config{Endpoints: kv.Endpoints(), Prefix: "/cluster/one"})
	must.Do(t, create(t, s, "v1.a.io"))
	const prefix = "/cluster/one/apiregistration.k8s.io/apiservices/"
	res, err := kv.KV.Get(t.Context(), prefix+"v1.a.io")
	must.Be(t, err == nil && len(res.Kvs) == 1 && bytes.HasPrefix(res.Kvs[0].Value, []byte(`{"kind":"APIService","apiVersion":"apiregistration.k8s.io/v1","metadata":{"name":"v1.a.io"`)), "stored: %v %v", err, res)
	scheme := runtime.NewScheme()
	install.Install(scheme)
	binary := protobuf.NewSerializer(scheme, scheme)
	o := &apiregistrationv1.APIService{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: "v1.b.io"}, Spec: apiregistrationv1.APIServiceSpec{Group: "b.io", Version: "v1"},
	}
	var b bytes.Buffer
	must.Do(t, binary.Encode(o, &b))
	must.Get(kv.Put(t.Context(), prefix+"v1.b.io", b.String()))(t)
	from := s.Storage()["apiservices"].(rest.Getter) //nolint:forcetypeassert // it is one
	got, err := from.Get(asked(t), "v1.b.io", &metav1.GetOptions{})
	must.Be(t, err == nil && got.(*apiregistration.APIService).Spec.Group == "b.io", "protobuf: %v %v", err, got) //nolint:forcetypeassert // a failure either way
}

// After a long outage etcd is soon tried again.
func TestReconnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		refused := func(context.Context, string) (net.Conn, error) {
			tries.Add(1)
			return nil, net.ErrClosed
		}
		c := must.Get(grpc.NewClient("passthrough:///etcd", reconnection(),
			grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(refused)))(t)
		defer c.Close()
		for end := time.Now().Add(10 * time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
			c.Connect()
		}
		must.Be(t, tries.Load() >= 150, "%d tries in 10 minutes", tries.Load())
	})
}

// One replica leads at a time, and the next takes over when the first stops. After a restore of etcd all begin anew:
// who waits for a leader's end at a revision of before would miss it.
func TestElect(t *testing.T) {
	kv := testserver.RunEtcd(t, nil)
	leads := make(chan string)
	begin := func(name string) (s *Store, stop func()) {
		s = open(t, Config{Endpoints: kv.Endpoints()})
		ctx, cancel := context.WithCancel(t.Context())
		var ended sync.WaitGroup
		ended.Go(func() {
			_ = s.Elect(ctx, "test", func(ctx context.Context) {
				select {
				case leads <- name:
				case <-ctx.Done():
				}
				<-ctx.Done()
			})
		})
		stop = sync.OnceFunc(func() {
			cancel()
			ended.Wait()
		})
		t.Cleanup(stop)
		return s, stop
	}
	_, stop := begin("first")
	got := <-leads
	must.Be(t, got == "first", "%s leads", got)
	second, _ := begin("second")
	held := must.Get(kv.Leases(t.Context()))(t).Leases
	must.Soon(t, 20*time.Second, "a lease of each", func() bool {
		held = must.Get(kv.Leases(t.Context()))(t).Leases
		return len(held) == 2
	})
	select {
	case got := <-leads:
		t.Fatalf("%s leads, too", got)
	case <-time.After(200 * time.Millisecond):
	}
	for _, l := range held {
		must.Be(t, must.Get(kv.TimeToLive(t.Context(), l.ID))(t).GrantedTTL <= 15, "a lease of more than 15 s") // that of one that is killed ends by itself
	}
	second.raw.watches.Swap(newWatches()).end()
	must.Soon(t, 10*time.Second, "another lease of who waits", func() bool {
		now := must.Get(kv.Leases(t.Context()))(t).Leases
		return len(now) == 2 && [2]any{now[0], now[1]} != [2]any{held[0], held[1]} && [2]any{now[1], now[0]} != [2]any{held[0], held[1]}
	})
	begun := time.Now()
	stop()
	got = <-leads
	must.Be(t, got == "second" && time.Since(begun) <= 10*time.Second, "%s leads after %s", got, time.Since(begun))
}

// A leader whose process ends gives up its lease before the store is closed: the next one need not wait for its end.
func TestLeaderEndsWithItsStore(t *testing.T) {
	kv := testserver.RunEtcd(t, nil)
	scheme := runtime.NewScheme()
	install.Install(scheme)
	s := must.Get(New(scheme, Config{Endpoints: kv.Endpoints()}))(t)
	ctx, cancel := context.WithCancel(t.Context())
	var loops sync.WaitGroup
	loops.Go(func() { _ = s.Run(ctx) })
	loops.Go(func() { _ = s.Elect(ctx, "test", func(ctx context.Context) { cancel(); <-ctx.Done() }) })
	loops.Wait()
	left := must.Get(kv.Leases(t.Context()))(t).Leases
	must.Be(t, len(left) == 0, "leases are left: %v", left)
}
